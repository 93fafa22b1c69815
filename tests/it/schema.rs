//! Checks what gpufleet writes against the schemas in docs/schemas.

use serde_json::Value;
use std::path::Path;

/// Checks one JSON text against docs/schemas/NAME.json.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/schemas/{name}.json"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("a schema")).expect("JSON");
    let instance: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let schema = jsonschema::validator_for(&schema).expect("a valid schema");
    let errors: Vec<String> =
        schema.iter_errors(&instance).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "not as in docs/schemas/{name}.json: {errors:#?}\n{text}");
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
