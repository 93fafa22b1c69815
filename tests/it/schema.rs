//! Checks what gpufleet writes against the schemas in docs/schemas.

use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

/// Checks one JSON text against docs/schemas/NAME.json.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    thread_local! {
        /// Compiling a schema takes longer than checking thousands of lines.
        static COMPILED: RefCell<HashMap<String, (boon::Schemas, boon::SchemaIndex)>> = RefCell::default();
    }
    let instance: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    COMPILED.with_borrow_mut(|compiled| {
        let (schemas, index) = compiled.entry(name.to_owned()).or_insert_with(|| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/schemas/{name}.json"));
            compile(serde_json::from_str(&std::fs::read_to_string(&path).expect("a schema")).expect("JSON"))
        });
        if let Err(error) = schemas.validate(&instance, *index) {
            panic!("not as in docs/schemas/{name}.json: {error:#}\n{text}");
        }
    });
}

/// Compiles a schema, which must be valid.
#[track_caller]
pub(crate) fn compile(schema: Value) -> (boon::Schemas, boon::SchemaIndex) {
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("schema.json", schema).expect("a resource");
    let index = compiler.compile("schema.json", &mut schemas).unwrap_or_else(|error| panic!("{error:#}"));
    (schemas, index)
}

/// Checks every line that a subcommand wrote with `--json`. Other output is not looked at.
#[track_caller]
pub(crate) fn check_output(arguments: &[&str], output: &[u8]) {
    let has = |word: &str| arguments.contains(&word);
    if !has("--json") {
        return;
    }
    let name = match () {
        () if has("status") => "status",
        () if has("free") => "free",
        () if has("why") => "why",
        () if has("report") => "report",
        () if has("--replay") || has("--watch") => "findings-change",
        () => "findings",
    };
    for line in String::from_utf8_lossy(output).lines() {
        check(name, line);
    }
}

#[test]
#[should_panic(expected = "not as in docs/schemas/status.json")]
fn an_output_of_another_kind_is_found() {
    check_output(&["status", "--json"], b"{\"schema\":1}\n");
}
