//! Lines of `title  piece, piece`, and how numbers read.

use std::fmt::Display;

/// Columns that a title takes.
const TITLE_COLUMNS: usize = 11;

/// Columns that a line may take, where its pieces allow it.
const COLUMNS: usize = 110;

/// A page that grows line by line.
#[derive(Debug, Default)]
pub(super) struct ReportWriter {
    text: String,
    fields: Vec<String>,
    /// What is usual and was not told, since the block began.
    unknown: Vec<&'static str>,
}

impl ReportWriter {
    /// A whole line.
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref().trim_end());
        self.text.push('\n');
    }

    /// A piece of the line that is being put together; where there is none, its name is kept for the end of the block.
    pub(super) fn field(&mut self, name: &'static str, field: Option<String>) {
        match field {
            Some(field) => self.fields.push(field),
            None => self.unknown.push(name),
        }
    }

    /// The same of what is there on few machines only, or only at times: nobody misses it.
    pub(super) fn optional_field(&mut self, field: Option<String>) {
        self.fields.extend(field);
    }

    /// Ends the line, if it has a piece.
    pub(super) fn end_line(&mut self, title: &str) {
        let fields = std::mem::take(&mut self.fields);
        self.write_wrapped(&format!("  {title:TITLE_COLUMNS$} "), &fields);
    }

    /// Ends the block with what was not told.
    pub(super) fn end_section(&mut self) {
        self.fields = std::mem::take(&mut self.unknown).into_iter().map(str::to_owned).collect();
        self.end_line("not told");
    }

    /// The pieces behind a beginning, on as many lines as they take; what follows the first stands below it.
    pub(super) fn write_wrapped(&mut self, prefix: &str, fields: &[String]) {
        let Some((first, others)) = fields.split_first() else { return };
        let indent = prefix.chars().count();
        let mut line = format!("{prefix}{first}");
        for field in others {
            line.push(',');
            if line.chars().count() + 1 + field.chars().count() > COLUMNS {
                self.line(&line);
                line = " ".repeat(indent);
            } else {
                line.push(' ');
            }
            line.push_str(field);
        }
        self.line(line);
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A value with words around it.
pub(super) fn with_affixes<T: Display>(before: &str, value: Option<T>, after: &str) -> Option<String> {
    value.map(|value| format!("{before}{value}{after}"))
}

/// `use of most unit`, as far as both are known; nothing without the first.
pub(super) fn used_of<T: Display, U: Display>(
    before: &str,
    used: Option<T>,
    most: Option<U>,
    unit: &str,
) -> Option<String> {
    let used = used?;
    Some(match most {
        Some(most) => format!("{before}{used} of {most}{unit}"),
        None => format!("{before}{used}{unit}"),
    })
}

pub(super) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Bytes by the power of 1024 that leaves few digits.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1000.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", UNITS[unit])
}

/// A rate in bytes a second.
pub(super) fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second.max(0.0) as u64))
}

/// A time by the largest unit that it fills.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{:.1} s", seconds.max(0.0)),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} d", seconds / 86_400.0),
    }
}
