//! Makes docs/schemas from the types and keys of the program, and checks them.

use crate::app::keymap::named_actions;
use crate::app::{Density, SettingsFile};
use crate::cli::arguments::SchemaName;
use crate::config::thresholds::{Parameter, Unit};
use crate::config::{HostsFile, MAX_PRICE, PARAMETERS, RULES};
use crate::fleet::recording;
use crate::output::{findings, free, json, notification, usage_report, why};
use crate::wire::Message;
use clap::ValueEnum;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const HOSTS_EXAMPLE: &str = include_str!("../../hosts.example.toml");
const SETTINGS_EXAMPLE: &str = include_str!("../../settings.example.toml");

/// The schema of a type as it is written.
fn of_type<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// The schema, made from the program.
fn made(name: SchemaName) -> Value {
    let (title, mut schema) = match name {
        SchemaName::Hosts => ("hosts.toml of gpufleet", hosts()),
        SchemaName::Settings => ("settings.toml of gpufleet", settings()),
        SchemaName::Status => ("Output of gpufleet status --json", of_type::<json::JsonReport>()),
        SchemaName::Findings => ("Output of gpufleet findings --json", of_type::<findings::JsonFindings>()),
        SchemaName::FindingsChange => {
            ("A line of gpufleet findings --json with --watch or --replay", of_type::<findings::JsonTransition>())
        }
        SchemaName::Free => ("Output of gpufleet free --json", of_type::<free::JsonFreeReport>()),
        SchemaName::Why => ("Output of gpufleet why --json", of_type::<why::JsonWhy>()),
        SchemaName::Report => ("Output of gpufleet report --json", of_type::<usage_report::UsageReport>()),
        SchemaName::Notification => {
            ("Standard input of the program of on_finding", of_type::<notification::JsonNotification>())
        }
        SchemaName::Recording => ("A line of a recording of gpufleet record", recording()),
    };
    schema["title"] = title.into();
    schema
}

/// A line of a recording as it is read, also of one that an older gpufleet wrote: the first line, a message of the probe, or
/// a change of the connection.
fn recording() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let message = generator.subschema_for::<Message>();
    let link = generator.subschema_for::<recording::RecordedLinkState>();
    let error = generator.subschema_for::<recording::RecordedError>();
    let time = json!({ "description": "Seconds since the start of the recording.", "type": "number", "minimum": 0 });
    let host = json!({ "description": "The name of the host.", "type": "string" });
    let line = |required: &[&str], properties: Value| json!({ "type": "object", "required": required, "properties": properties });
    let first = json!({
        "recording": { "description": "The version of the format.", "const": recording::RECORDING_VERSION },
        "started": { "description": "When the recording started, RFC 3339.", "type": "string" },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": [
            line(&["recording", "started"], first),
            line(&["t", "host", "wire"], json!({ "t": time, "host": host, "wire": message })),
            line(&["t", "host", "link"], json!({
                "t": time, "host": host, "link": link, "error": error,
                "misbehavior": { "description": "As in status --json.", "type": "string" },
            })),
        ],
        "$defs": generator.take_definitions(true),
    })
}

/// The comment above each key of an example file: (key, comment).
fn comments(example: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut comment = String::new();
    for line in example.lines() {
        if let Some(text) = line.strip_prefix('#') {
            let separator = if comment.is_empty() { "" } else { " " };
            comment += separator;
            comment += text.trim();
            continue;
        }
        if let Some((key, _)) = line.split_once(" = ")
            && !comment.is_empty()
        {
            found.push((key.to_owned(), comment.clone()));
        } else if let Some(table) = line.strip_prefix('[')
            && !comment.is_empty()
        {
            found.push((table.trim_matches(['[', ']']).to_owned(), comment.clone()));
        }
        comment.clear();
    }
    found
}

/// Adds the comments of the example file to the properties without a description.
fn describe(properties: &mut Value, example: &str) {
    let comments = comments(example);
    for (key, property) in properties.as_object_mut().expect("an object") {
        if let Some((_, comment)) = comments.iter().find(|(known, _)| known == key) {
            property["description"] = comment.as_str().into();
        }
    }
}

fn object(properties: &Value) -> Value {
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn choice(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

fn strings() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

const DURATION: &str = r"^\s*[0-9]+(\.[0-9]*)?\s*(ms|s|m|min|h|d|w)\s*$";

fn hosts() -> Value {
    let mut host = json!({
        "name": { "type": "string" },
        "address": { "type": "string" },
        "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
        "user": { "type": "string" },
        "identity_file": { "type": "string", "minLength": 1 },
        "known_hosts": { "type": "string", "minLength": 1 },
        "proxy_jump": { "type": "string" },
        "ssh_config": { "type": "string", "minLength": 1 },
        "backend": choice(&["auto", "native", "system", "local"]),
        "probe": { "anyOf": [choice(&["upload", "nvidia-smi"]), { "type": "string", "pattern": "^/" }] },
        "allow_shm": { "type": "boolean" },
        "nvml_library": { "type": "string", "pattern": "^/" },
        "interval": { "type": "string", "pattern": DURATION },
        "tags": { "type": "array", "items": { "type": "string", "pattern": r"^\S+$" } },
        "group": { "type": "string" },
        "note": { "type": "string" },
        "reserved": { "type": "string", "pattern": r"^[0-9,\s-]*$" },
        "signals": choice(&["none", "own", "all"]),
        "examine": choice(&["automatic", "asked"]),
        "ras": choice(&["safe", "ask", "never"]),
        "shared_account": { "type": "boolean" },
        "share": choice(&["none", "names", "commands"]),
        "role": choice(&["serving", "training"]),
        "diagnosis": { "$ref": "#/$defs/diagnosis" },
    });
    describe(&mut host, HOSTS_EXAMPLE);
    let mut defaults = host.clone();
    defaults.as_object_mut().expect("an object").remove("name");
    let mut section = object(&host);
    section["required"] = json!(["name"]);
    let mut notifications = json!({
        "bell": { "type": "boolean" },
        "desktop": { "type": "boolean" },
        "on_finding": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 64 },
        "min_severity": choice(&["warn", "crit"]),
        "rate": { "type": "string", "pattern": r"^\s*[0-9]+\s*/\s*(s|m|min|h)\s*$" },
    });
    describe(&mut notifications, HOSTS_EXAMPLE);
    let price = json!({ "type": "number", "minimum": 0, "maximum": MAX_PRICE });
    let models = json!({ "type": "object", "propertyNames": { "pattern": r"\S" }, "additionalProperties": price });
    let mut cost = json!({ "gpu_hour": models, "kwh": price });
    describe(&mut cost, HOSTS_EXAMPLE);
    let mut definitions: Map<String, Value> = RULES.iter().map(|rule| ((*rule).to_owned(), rule_table(rule))).collect();
    definitions.insert("diagnosis".to_owned(), diagnosis(&[]));
    let tables = json!({ "type": "object", "additionalProperties": { "$ref": "#/$defs/diagnosis" } });
    let signals = object(&json!({ "signals": choice(&["none", "own", "all"]) }));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "required": ["hosts"],
        "properties": {
            "defaults": object(&defaults),
            "hosts": { "type": "array", "minItems": 1, "items": section },
            "diagnosis": diagnosis(&[("tag", tables)]),
            "tag": { "type": "object", "additionalProperties": signals },
            "notifications": object(&notifications),
            "cost": object(&cost),
        },
        "$defs": definitions,
    })
}

/// A `[diagnosis]` table, with these properties besides its own.
fn diagnosis(more: &[(&str, Value)]) -> Value {
    let mut properties = json!({
        "off": { "type": "array", "items": choice(&RULES) },
        "model_servers": strings(),
        "role": choice(&["serving", "training"]),
    });
    describe(&mut properties, HOSTS_EXAMPLE);
    for rule in RULES {
        properties[rule] = json!({ "$ref": format!("#/$defs/{rule}") });
    }
    for (key, value) in more {
        properties[*key] = value.clone();
    }
    object(&properties)
}

/// `true` or `false`, or the thresholds of a rule.
fn rule_table(rule: &str) -> Value {
    let parameters = PARAMETERS.iter().filter(|parameter| parameter.rule == rule);
    let parameters: Map<String, Value> =
        parameters.map(|parameter| (parameter.key.to_owned(), threshold(parameter))).collect();
    json!({ "anyOf": [{ "type": "boolean" }, object(&parameters.into())] })
}

fn threshold(parameter: &Parameter) -> Value {
    let description =
        format!("In {}: {}. Default: {}.", parameter.unit.words(), parameter.about, default_of(parameter));
    match parameter.unit {
        Unit::Time => json!({ "description": description, "type": "string", "pattern": DURATION }),
        unit => {
            let most = match unit {
                Unit::Percent => 100.0,
                Unit::Celsius => 200.0,
                _ => 1e9,
            };
            json!({ "description": description, "type": "number", "minimum": 0, "maximum": most })
        }
    }
}

fn default_of(parameter: &Parameter) -> String {
    match parameter.unit {
        Unit::Time => format!("\"{}s\"", parameter.default),
        _ => parameter.default.to_string(),
    }
}

fn settings() -> Value {
    let key = json!({ "type": "string", "minLength": 1 });
    let keys = json!({ "anyOf": [key, { "type": "array", "items": key, "minItems": 1, "maxItems": 8 }] });
    let actions: Map<String, Value> =
        named_actions().iter().map(|(name, _)| ((*name).to_owned(), keys.clone())).collect();
    let mut properties = json!({
        "theme": choice(&["auto", "dark", "light", "mono"]),
        "ascii": { "enum": [true, false, "auto"] },
        "mouse": { "type": "boolean" },
        "readonly": { "type": "boolean" },
        "density": choice(&Density::ALL.map(Density::word)),
        "note": { "type": "string" },
        "keys": object(&actions.into()),
    });
    describe(&mut properties, SETTINGS_EXAMPLE);
    let mut schema = object(&properties);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas")
}

fn file_name(name: SchemaName) -> String {
    let value = name.to_possible_value().expect("a name");
    format!("{}.json", value.get_name())
}

/// A compiled schema.
struct Validator(boon::Schemas, boon::SchemaIndex);

impl Validator {
    fn validate(&self, instance: &Value) -> Result<(), String> {
        self.0.validate(instance, self.1).map_err(|error| format!("{error:#}"))
    }

    fn is_valid(&self, instance: &Value) -> bool {
        self.validate(instance).is_ok()
    }
}

fn validator(name: SchemaName) -> Validator {
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("schema.json", made(name)).expect("a resource");
    let index = compiler.compile("schema.json", &mut schemas).unwrap_or_else(|error| panic!("{error:#}"));
    Validator(schemas, index)
}

#[track_caller]
fn check(name: SchemaName, instance: &Value) {
    if let Err(error) = validator(name).validate(instance) {
        panic!("{error}\n{instance:#}");
    }
}

fn of_toml(text: &str) -> Value {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_files_in_docs_are_those_of_the_program() {
    for name in SchemaName::value_variants() {
        let text = format!("{:#}\n", made(*name));
        let path = folder().join(file_name(*name));
        if std::env::var_os("GPUFLEET_WRITE_DOCS").is_some() {
            std::fs::write(&path, &text).expect("writes");
        } else {
            assert!(
                name.text() == text,
                "docs/schemas/{} is old: GPUFLEET_WRITE_DOCS=1 cargo test --lib schema_tests",
                file_name(*name)
            );
        }
    }
    let count = std::fs::read_dir(folder()).expect("a folder").count();
    assert_eq!(count, SchemaName::value_variants().len());
}

#[test]
fn every_key_of_the_example_files_is_allowed_and_described() {
    check(SchemaName::Hosts, &of_toml(HOSTS_EXAMPLE));
    check(SchemaName::Settings, &of_toml(SETTINGS_EXAMPLE));
    let hosts = made(SchemaName::Hosts);
    let properties = &hosts["properties"];
    for table in ["/hosts/items", "/defaults", "/notifications", "/cost"] {
        let table = properties.pointer(table).expect(table);
        for (key, property) in table["properties"].as_object().expect("an object") {
            assert!(property["description"].is_string() || key == "diagnosis", "{key} has no description");
        }
    }
    for (key, property) in made(SchemaName::Settings)["properties"].as_object().expect("an object") {
        assert!(property["description"].is_string(), "{key} has no description");
    }
}

#[test]
fn a_schema_of_hosts_toml_accepts_and_refuses_what_gpufleet_does() {
    let schema = validator(SchemaName::Hosts);
    for line in [
        "port = 22",
        "port = 0",
        "port = \"22\"",
        "interval = \"250ms\"",
        "interval = 2",
        "interval = \"soon\"",
        "backend = \"native\"",
        "backend = \"openssh\"",
        "probe = \"/opt/probe\"",
        "probe = \"opt/probe\"",
        "probe = \"nvidia-smi\"",
        "allow_shm = true",
        "allow_shm = \"yes\"",
        "tags = [\"a\", \"b\"]",
        "tags = [\"two words\"]",
        "tags = \"a\"",
        "reserved = \"0-3,7\"",
        "reserved = \"all\"",
        "signals = \"own\"",
        "signals = \"mine\"",
        "role = \"serving\"",
        "role = \"idle\"",
        "nvml_library = \"/usr/lib/libnvidia-ml.so.1\"",
        "nvml_library = \"libnvidia-ml.so.1\"",
        "identity_file = \"\"",
        "adress = \"a\"",
        "diagnosis = { off = [\"idle-hog\"] }",
        "diagnosis = { off = [\"idle-hogs\"] }",
        "diagnosis = { idle-hog = false }",
        "diagnosis = { idle-hog = 1 }",
        "diagnosis = { idle-hog = { warn_after = \"2h\", share = 5 } }",
        "diagnosis = { idle-hog = { warn_after = 7200 } }",
        "diagnosis = { idle-hog = { share = 101 } }",
        "diagnosis = { idle-hog = { shore = 5 } }",
        "[notifications]\nrate = \"20/h\"\non_finding = [\"notify\"]",
        "[notifications]\nrate = \"20 per hour\"",
        "[notifications]\non_finding = []",
        "[notifications]\nmin_severity = \"info\"",
        "[cost]\ngpu_hour = { \"H100\" = 2.5 }\nkwh = 1",
        "[cost]\ngpu_hour = { \"H100\" = -2.5 }",
        "[cost]\ngpu_hour = { \" \" = 2.5 }",
        "[cost]\ngpu_hour = 2.5",
        "[cost]\nkwh = \"0.3\"",
        "[tag.a]\nsignals = \"none\"",
        "[tag.a]\nsignal = \"none\"",
        "[diagnosis.tag.a]\nidle-hog = false",
        "[diagnosis.tag.a.tag.b]\nidle-hog = false",
    ] {
        let text = format!("[[hosts]]\nname = \"hgx-01\"\n{line}\n");
        let is_read = HostsFile::parse("hosts.toml", &text, Some(Path::new("/home/ann"))).is_ok();
        assert_eq!(schema.is_valid(&of_toml(&text)), is_read, "{line}");
    }
}

#[test]
fn a_schema_of_settings_toml_accepts_and_refuses_what_gpufleet_does() {
    let schema = validator(SchemaName::Settings);
    for line in [
        "theme = \"dark\"",
        "theme = \"darker\"",
        "ascii = \"auto\"",
        "ascii = true",
        "ascii = 1",
        "mouse = false",
        "mouse = \"off\"",
        "density = \"full\"",
        "density = \"fullest\"",
        "keys = { shell = \"Q\" }",
        "keys = { shell = [] }",
        "keys = { shel = \"Q\" }",
        "colour = \"red\"",
    ] {
        let is_read = SettingsFile::parse("settings.toml", line).is_ok();
        assert_eq!(schema.is_valid(&of_toml(line)), is_read, "{line}");
    }
}

#[test]
fn files_that_gpufleet_reads_fit_their_schemas() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut read = [0, 0];
    for (place, (folder, name)) in
        [("hosts_toml", SchemaName::Hosts), ("settings_toml", SchemaName::Settings)].into_iter().enumerate()
    {
        for entry in std::fs::read_dir(corpus.join(folder)).expect("a folder") {
            let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("text");
            let is_read = match name {
                SchemaName::Hosts => HostsFile::parse("f", &text, Some(Path::new("/home/ann"))).is_ok(),
                _ => SettingsFile::parse("f", &text).is_ok(),
            };
            if is_read {
                check(name, &of_toml(&text));
                read[place] += 1;
            }
        }
    }
    assert!(read.iter().all(|count| *count > 0), "{read:?}");
}

#[test]
fn recordings_fit_their_schema() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/recording");
    let schema = validator(SchemaName::Recording);
    let mut lines = 0;
    for entry in std::fs::read_dir(corpus).expect("a folder") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("text");
        for line in text.lines() {
            let Ok(value) = serde_json::from_str::<Value>(line) else { continue };
            schema.validate(&value).unwrap_or_else(|error| panic!("{error}\n{line}"));
            lines += 1;
        }
    }
    assert!(lines > 10, "{lines} lines");
}

/// The examples of the documents: JSON blocks between three backquotes.
#[test]
fn examples_in_documents_fit_their_schemas() {
    for (document, name) in [("recording.md", SchemaName::Recording)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(document);
        let text = std::fs::read_to_string(path).expect(document);
        let blocks: Vec<&str> = text.split("```json\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
        assert!(!blocks.is_empty(), "{document} has no examples");
        for line in blocks.iter().flat_map(|block| block.lines()) {
            check(name, &serde_json::from_str(line).unwrap_or_else(|error| panic!("{document}: {error}\n{line}")));
        }
    }
}

/// The TOML blocks of the README and the documents are hosts.toml or parts of it.
#[test]
fn toml_examples_in_documents_are_read_and_fit_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents =
        std::fs::read_dir(root.join("docs")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut count = 0;
    for path in documents.chain([root.join("README.md")]).filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let text = std::fs::read_to_string(&path).expect("text");
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let table = if block.starts_with("on_finding") { "[notifications]\n" } else { "" };
            let hosts = if block.contains("[[hosts]]") { "" } else { "\n[[hosts]]\nname = \"hgx-01\"\n" };
            let example = format!("{table}{block}{hosts}");
            if let Err(error) = HostsFile::parse("example", &example, Some(Path::new("/home/ann"))) {
                panic!("{}: {error}", path.display());
            }
            check(SchemaName::Hosts, &of_toml(&example));
            count += 1;
        }
    }
    assert!(count >= 3, "{count} examples");
}

#[test]
fn the_example_of_the_notifications_fits_its_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/notifications.md");
    let text = std::fs::read_to_string(path).expect("a document");
    let examples: Vec<&str> = text
        .split("echo '")
        .skip(1)
        .filter_map(|rest| rest.split('\'').next())
        .filter(|it| it.starts_with('{'))
        .collect();
    assert!(!examples.is_empty());
    for example in examples {
        check(SchemaName::Notification, &serde_json::from_str(example).expect(example));
    }
}

/// A schema that accepts everything would pass the other tests.
#[test]
fn a_schema_refuses_an_output_without_a_field_or_with_another_type() {
    let empty = json!({ "schema": 1, "time": null, "simulated": false, "hosts": [], "findings": [] });
    check(SchemaName::Status, &empty);
    let schema = validator(SchemaName::Status);
    for field in ["schema", "time", "simulated", "hosts", "findings"] {
        let mut without = empty.clone();
        without.as_object_mut().expect("an object").remove(field);
        assert!(!schema.is_valid(&without), "{field} is missing");
        let mut other = empty.clone();
        other[field] = json!({ "x": 1 });
        assert!(!schema.is_valid(&other), "{field} has another type");
    }
    let _: Schema = made(SchemaName::Status).try_into().expect("a schema");
}
