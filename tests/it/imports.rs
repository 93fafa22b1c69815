//! The structure of `src`: which file may use which.
//!
//! The tests read the source with `syn`. A path such as `crate::fleet::Host` counts as a use of the file that defines
//! `Host`, not of the `mod.rs` that re-exports it. Code under `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};

/// The top-level modules that each top-level module may use. ARCHITECTURE.md explains the order.
const ALLOWED: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("config", &["wire"]),
    ("probe", &["wire"]),
    ("ssh", &["config", "store", "wire"]),
    ("fleet", &["config", "wire"]),
    ("store", &["wire"]),
    ("sim", &["config", "fleet", "wire"]),
    ("share", &["config", "diagnosis", "fleet", "store", "wire"]),
    ("collect", &["config", "fleet", "share", "ssh", "wire"]),
    ("diagnosis", &["config", "fleet", "wire"]),
    ("output", &["config", "diagnosis", "fleet", "store", "wire"]),
    ("app", &["config", "diagnosis", "fleet", "ssh", "wire"]),
    ("ui", &["app", "diagnosis", "fleet", "ssh", "wire"]),
    ("fuzzing", &["app", "collect", "config", "diagnosis", "fleet", "probe", "ssh", "ui", "wire"]),
    (
        "cli",
        &["app", "collect", "config", "diagnosis", "fleet", "output", "share", "sim", "ssh", "store", "ui", "wire"],
    ),
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Parsing the source takes seconds.
static IMPORTS: LazyLock<Imports> = LazyLock::new(|| Imports::read(&src()).expect("the source parses"));

#[test]
fn no_files_import_each_other() {
    let imports = &*IMPORTS;
    assert!(imports.uses.len() > 100, "only {} files were found", imports.uses.len());
    let mut report = String::new();
    for circle in imports.circles() {
        for file in &circle {
            for (target, name) in imports.uses[file].iter().filter(|(target, _)| circle.contains(*target)) {
                let _ = writeln!(report, "{file} uses {name} of {target}");
            }
        }
        report += "\n";
    }
    assert!(report.is_empty(), "files that import each other belong together, or a third file is missing:\n{report}");
}

#[test]
fn modules_import_only_from_the_layers_below() {
    let imports = &*IMPORTS;
    let top = |file: &str| file.split(['/', '.']).next().unwrap_or_default().to_owned();
    let mut seen = BTreeSet::new();
    for (file, targets) in &imports.uses {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == top(file)) else {
            assert_eq!(file, "lib.rs", "{file} is in no known layer");
            continue;
        };
        seen.insert(top(file));
        for (target, name) in targets {
            let target = top(target);
            assert!(
                target == top(file) || allowed.contains(&target.as_str()),
                "{file} uses {name}, but {} may not use {target}",
                top(file)
            );
        }
    }
    assert_eq!(seen.len(), ALLOWED.len(), "the table names a module that does not exist");
}

/// Returns whether a test with this path exists: `lib:collect::tests::name` in src, `terminal::name` in tests/it.
fn test_exists(path: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (base, path) = path.strip_prefix("lib:").map_or((root.join("tests/it"), path), |path| (root.join("src"), path));
    let mut parts: Vec<&str> = path.split("::").collect();
    let Some(name) = parts.pop() else { return false };
    parts.retain(|part| *part != "tests");
    let file = base.join(parts.join("/"));
    let candidates =
        [file.with_extension("rs"), file.join("mod.rs"), PathBuf::from(format!("{}_tests.rs", file.display()))];
    let declaration = format!("fn {name}(");
    candidates.iter().filter_map(|file| std::fs::read_to_string(file).ok()).any(|text| text.contains(&declaration))
}

#[test]
fn tests_named_in_documents_and_scripts_exist() {
    assert!(!test_exists("imports::no_such_test") && test_exists("imports::no_files_import_each_other"));
    for (document, quote) in [("docs/security.md", '`'), ("tests/faults", '"')] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).expect("it is read");
        let is_path =
            |word: &&str| word.contains("::") && !word.ends_with("::") && !word.contains([' ', '/', '\n', '{', '%']);
        let named: Vec<&str> = text.split(quote).filter(is_path).collect();
        assert!(named.len() > 20, "{document}: {}", named.len());
        let missing: Vec<&&str> = named.iter().filter(|path| !test_exists(path)).collect();
        assert!(missing.is_empty(), "{document} names tests that do not exist: {missing:?}");
    }
}

#[test]
fn no_source_file_is_nested_deeper_than_two_folders() {
    let mut open = vec![(src(), 0)];
    let mut files = 0;
    while let Some((folder, depth)) = open.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of src") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "snapshots") {
                open.push((path, depth + 1));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files += 1;
                assert!(depth <= 2, "{} is nested too deeply", path.display());
            }
        }
    }
    assert!(files > 100, "only {files} files were found");
}

#[test]
fn a_circle_of_imports_is_found_through_reexports_and_aliases() {
    let folder = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("lib.rs", "pub mod a;\npub mod b;\n");
    write("a/mod.rs", "mod one;\nmod two;\npub use one::One;\npub use two::{two, Two};\n");
    write("a/one.rs", "use crate::b;\npub struct One(b::Three);\n");
    write("a/two.rs", "pub struct Two;\npub fn two() {}\n#[cfg(test)]\nmod tests { use crate::a::One; }\n");
    write("b.rs", "use super::a::*;\npub struct Three(Two);\nfn run() { two() }\n");
    let imports = Imports::read(folder.path()).expect("parses");
    assert_eq!(imports.circles(), Vec::<BTreeSet<String>>::new());
    assert_eq!(imports.uses["b.rs"].keys().collect::<Vec<_>>(), ["a/two.rs"]);
    assert_eq!(imports.uses["a/one.rs"].keys().collect::<Vec<_>>(), ["b.rs"]);

    write("a/two.rs", "pub struct Two;\npub fn two() { println!(\"{:?}\", super::One::new()) }\n");
    let circles = Imports::read(folder.path()).expect("parses").circles();
    let files = ["a/one.rs", "a/two.rs", "b.rs"].map(str::to_owned);
    assert_eq!(circles, [BTreeSet::from(files)]);
}

/// A module path from the crate's root: `["fleet", "host"]`.
type ModulePath = Vec<String>;

/// The uses between the files of one crate.
struct Imports {
    /// For each file, the files it uses with one of the names that it uses there. Paths are relative to `src`.
    uses: BTreeMap<String, BTreeMap<String, String>>,
}

/// One file of the crate.
struct Module {
    file: String,
    syntax: syn::File,
    /// Names that this file defines.
    items: BTreeSet<String>,
    /// Names that a `use` brings into this file, each with the path it stands for.
    aliases: BTreeMap<String, Vec<String>>,
    /// Modules from which `use module::*` takes every name.
    globs: Vec<Vec<String>>,
}

impl Imports {
    /// Reads the crate whose root is `src/lib.rs`.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, with its name.
    fn read(src: &Path) -> Result<Self, String> {
        let mut modules = BTreeMap::new();
        load(src, &src.join("lib.rs"), &Vec::new(), &mut modules)?;
        let uses = modules
            .iter()
            .map(|(path, module)| {
                let mut collector = UseCollector { modules: &modules, module: path, found: BTreeMap::new() };
                collector.visit_file(&module.syntax);
                collector.found.remove(&module.file);
                (module.file.clone(), collector.found)
            })
            .collect();
        Ok(Self { uses })
    }

    /// Groups of files that use each other in a circle, directly or through others. Empty if there is no circle.
    fn circles(&self) -> Vec<BTreeSet<String>> {
        let mut circles: Vec<BTreeSet<String>> = Vec::new();
        let reachable: BTreeMap<&String, BTreeSet<&String>> =
            self.uses.keys().map(|file| (file, self.reachable(file))).collect();
        for (file, targets) in &reachable {
            if !targets.contains(file) || circles.iter().any(|circle| circle.contains(*file)) {
                continue;
            }
            circles.push(
                targets.iter().filter(|target| reachable[*target].contains(file)).map(|t| (*t).clone()).collect(),
            );
        }
        circles
    }

    fn reachable(&self, from: &String) -> BTreeSet<&String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for target in self.uses[file].keys() {
                if seen.insert(target) {
                    open.push(target);
                }
            }
        }
        seen
    }
}

fn load(src: &Path, file: &Path, path: &ModulePath, modules: &mut BTreeMap<ModulePath, Module>) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut names = Names::default();
    names.collect(&syntax.items);
    for (child, at) in std::mem::take(&mut names.child_modules) {
        let mut child_path = path.clone();
        child_path.push(child.clone());
        load(src, &child_file(file, &child, at), &child_path, modules)?;
        names.items.insert(child);
    }
    let relative = file.strip_prefix(src).unwrap_or(file).display().to_string();
    let Names { items, aliases, globs, .. } = names;
    modules.insert(path.clone(), Module { file: relative, syntax, items, aliases, globs });
    Ok(())
}

/// Where `mod child;` in `file` lives (Rust Reference, "Module Source Filenames").
fn child_file(file: &Path, child: &str, at: Option<String>) -> PathBuf {
    let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
    if let Some(at) = at {
        return folder.join(at);
    }
    let is_folder_root = file.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs");
    let folder = if is_folder_root { folder } else { file.with_extension("") };
    let flat = folder.join(format!("{child}.rs"));
    if flat.exists() { flat } else { folder.join(child).join("mod.rs") }
}

/// The names of one file.
#[derive(Default)]
struct Names {
    items: BTreeSet<String>,
    /// Each with the value of its `#[path]`.
    child_modules: Vec<(String, Option<String>)>,
    aliases: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

impl Names {
    fn collect(&mut self, items: &[syn::Item]) {
        for item in items {
            let (attributes, name) = match item {
                syn::Item::Const(item) => (&item.attrs, &item.ident),
                syn::Item::Enum(item) => (&item.attrs, &item.ident),
                syn::Item::Fn(item) => (&item.attrs, &item.sig.ident),
                syn::Item::Static(item) => (&item.attrs, &item.ident),
                syn::Item::Struct(item) => (&item.attrs, &item.ident),
                syn::Item::Trait(item) => (&item.attrs, &item.ident),
                syn::Item::Type(item) => (&item.attrs, &item.ident),
                syn::Item::Mod(item) => {
                    if !is_test(&item.attrs) && item.content.is_none() {
                        self.child_modules.push((item.ident.to_string(), path_attribute(&item.attrs)));
                    }
                    (&item.attrs, &item.ident)
                }
                syn::Item::Use(item) => {
                    if !is_test(&item.attrs) {
                        flatten(&item.tree, &mut Vec::new(), &mut |path, name| match name {
                            Some(name) => drop(self.aliases.insert(name, path)),
                            None => self.globs.push(path),
                        });
                    }
                    continue;
                }
                _ => continue,
            };
            if !is_test(attributes) {
                self.items.insert(name.to_string());
            }
        }
    }
}

/// Calls `found` with each path of a `use` and the name it gets, `None` for `*`.
fn flatten(tree: &syn::UseTree, prefix: &mut Vec<String>, found: &mut dyn FnMut(Vec<String>, Option<String>)) {
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, found);
            prefix.pop();
        }
        syn::UseTree::Name(name) if name.ident == "self" => {
            found(prefix.clone(), prefix.last().cloned());
        }
        syn::UseTree::Name(name) => {
            let mut path = prefix.clone();
            path.push(name.ident.to_string());
            found(path, Some(name.ident.to_string()));
        }
        syn::UseTree::Rename(rename) => {
            let mut path = prefix.clone();
            if rename.ident != "self" {
                path.push(rename.ident.to_string());
            }
            found(path, Some(rename.rename.to_string()));
        }
        syn::UseTree::Glob(_) => found(prefix.clone(), None),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, found)),
    }
}

fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let syn::Expr::Lit(literal) = &attribute.meta.require_name_value().ok()?.value else { return None };
        let syn::Lit::Str(path) = &literal.lit else { return None };
        Some(path.value())
    })
}

/// Whether an attribute is `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| {
                    let tokens = list.tokens.to_string();
                    tokens == "test" || tokens.starts_with("all (test")
                })
    })
}

/// Finds the files that one file uses.
struct UseCollector<'a> {
    modules: &'a BTreeMap<ModulePath, Module>,
    module: &'a ModulePath,
    found: BTreeMap<String, String>,
}

impl UseCollector<'_> {
    fn add(&mut self, path: &[String]) {
        if let Some(file) = self.resolve(self.module, path, 0) {
            self.found.entry(file).or_insert_with(|| path.join("::"));
        }
    }

    /// The file that defines what `path` names when it stands in `module`; `None` if it is of another crate.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        // Two globs that name each other would go on for ever.
        if depth > 12 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.resolve_in(&[], rest, depth),
            "self" => self.resolve_in(module, rest, depth),
            "super" => self.resolve_in(module.get(..module.len().checked_sub(1)?)?, rest, depth),
            _ => {
                let here = &self.modules[module];
                let known = here.items.contains(first) || here.aliases.contains_key(first) || !here.globs.is_empty();
                if known { self.resolve_in(module, path, depth) } else { None }
            }
        }
    }

    fn resolve_in(&self, module: &[String], path: &[String], depth: usize) -> Option<String> {
        let here = self.modules.get(module)?;
        let Some((first, rest)) = path.split_first() else {
            return Some(here.file.clone());
        };
        if first == "super" {
            return self.resolve_in(module.get(..module.len().checked_sub(1)?)?, rest, depth);
        }
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.resolve_in(&child, rest, depth);
        }
        if here.items.contains(first) {
            return Some(here.file.clone());
        }
        if let Some(alias) = here.aliases.get(first) {
            // `use regex;` names itself.
            if alias.first() == Some(first) {
                return None;
            }
            return self.resolve(module, &[alias.as_slice(), rest].concat(), depth + 1);
        }
        here.globs.iter().find_map(|glob| {
            let glob = [glob.as_slice(), path].concat();
            self.resolve(module, &glob, depth + 1)
        })
    }
}

impl<'ast> Visit<'ast> for UseCollector<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Enum(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A re-export passes a name on and does not use it.
        if !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        let mut paths = Vec::new();
        // The names that a glob brings count where they are used.
        flatten(&item.tree, &mut Vec::new(), &mut |path, name| paths.extend(name.map(|_| path)));
        for path in &paths {
            self.add(path);
        }
    }

    // The path in `pub(super)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Ok(arguments) = call.parse_body_with(Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated) {
            arguments.iter().for_each(|argument| visit::visit_expr(self, argument));
        }
        visit::visit_macro(self, call);
    }
}
