//! `gpufleet schema NAME`: prints the JSON Schema of a file that gpufleet reads or of an output.
//!
//! The schemas are in docs/schemas. `schema_tests.rs` makes them from the types that are written and from the keys that are
//! read, so they cannot differ from the program.

use super::{CommandError, print};
use crate::cli::arguments::{SchemaArgs, SchemaName};
use std::process::ExitCode;

impl SchemaName {
    /// The schema, as formatted JSON (draft 2020-12).
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Hosts => include_str!("../../docs/schemas/hosts.json"),
            Self::Settings => include_str!("../../docs/schemas/settings.json"),
            Self::Status => include_str!("../../docs/schemas/status.json"),
            Self::Findings => include_str!("../../docs/schemas/findings.json"),
            Self::FindingsChange => include_str!("../../docs/schemas/findings-change.json"),
            Self::Free => include_str!("../../docs/schemas/free.json"),
            Self::Why => include_str!("../../docs/schemas/why.json"),
            Self::Report => include_str!("../../docs/schemas/report.json"),
            Self::Notification => include_str!("../../docs/schemas/notification.json"),
            Self::Recording => include_str!("../../docs/schemas/recording.json"),
        }
    }
}

/// Prints one schema.
pub fn run(arguments: &SchemaArgs) -> Result<ExitCode, CommandError> {
    print(arguments.name.text())?;
    Ok(ExitCode::SUCCESS)
}
