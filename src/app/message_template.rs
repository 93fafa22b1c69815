//! The message to the user of an idle or hung GPU: a template with fields.

use crate::fleet::{GpuListStyle, Moment, format_gpu_list};
use crate::wire::SafeText;
use std::ops::Range;

/// The built-in template.
pub const DEFAULT_TEMPLATE: &str = "Hi {name}, on {host} your `{program}` (pid {pid}) has held {gpus}[ ({memory})][ since {held}].\
[ {fact}] If you no longer need it: `{end}`. Seen {seen}.";

/// A template. `{field}` is replaced by a fact; a part in `[brackets]` is left out if a fact in it is unknown. A doubled
/// brace or bracket stands for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
    Optional(Vec<Part>),
}

/// A field of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    User,
    Host,
    Program,
    Pid,
    Gpus,
    Memory,
    Held,
    Fact,
    End,
    Seen,
}

impl Field {
    const ALL: [(&'static str, Self); 11] = [
        ("name", Self::Name),
        ("user", Self::User),
        ("host", Self::Host),
        ("program", Self::Program),
        ("pid", Self::Pid),
        ("gpus", Self::Gpus),
        ("memory", Self::Memory),
        ("held", Self::Held),
        ("fact", Self::Fact),
        ("end", Self::End),
        ("seen", Self::Seen),
    ];
}

/// An error in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// The position, in bytes.
    pub at: Range<usize>,
    /// The problem.
    pub message: String,
    /// How to fix it.
    pub hint: String,
}

/// The facts that fill a template. Unknown facts are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFacts {
    /// The first name if the host knows the full name, otherwise the user name.
    pub name: String,
    /// The user name.
    pub user: String,
    /// The host name.
    pub host: String,
    /// The short name of the program.
    pub program: String,
    /// The pid of the process or of its launcher.
    pub pid: Option<u32>,
    /// Indexes of the GPUs it holds.
    pub gpu_indexes: Vec<u32>,
    /// GPU memory it holds, in bytes.
    pub memory_bytes: Option<u64>,
    /// When it started, in local time.
    pub held: Option<String>,
    /// The problem, as a sentence.
    pub fact: Option<String>,
    /// The command that ends it.
    pub end: Option<String>,
    /// When the facts were read, in local time.
    pub seen: String,
}

impl MessageFacts {
    fn field(&self, field: Field) -> Option<String> {
        match field {
            Field::Name => Some(self.name.clone()),
            Field::User => Some(self.user.clone()),
            Field::Host => Some(self.host.clone()),
            Field::Program => Some(self.program.clone()),
            Field::Pid => self.pid.map(|pid| pid.to_string()),
            Field::Gpus => Some(format_gpu_list(&self.gpu_indexes, GpuListStyle::Each)),
            Field::Memory => self.memory_bytes.map(gib),
            Field::Held => self.held.clone(),
            Field::Fact => self.fact.clone(),
            Field::End => self.end.clone(),
            Field::Seen => Some(self.seen.clone()),
        }
        .filter(|text| !text.is_empty())
    }
}

impl Default for MessageTemplate {
    fn default() -> Self {
        // A test parses the built-in template.
        Self::parse(DEFAULT_TEMPLATE).unwrap_or_else(|_| Self(vec![Part::Text(DEFAULT_TEMPLATE.to_owned())]))
    }
}

impl MessageTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the first unknown field or unbalanced brace or bracket.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut optional: Option<(usize, Vec<Part>)> = None;
        let mut literal = String::new();
        let mut characters = text.char_indices().peekable();
        let error =
            |at: Range<usize>, message: String, hint: &str| TemplateError { at, message, hint: hint.to_owned() };
        while let Some((at, character)) = characters.next() {
            let is_doubled = matches!(character, '{' | '}' | '[' | ']')
                && characters.next_if(|(_, next)| *next == character).is_some();
            if is_doubled || !matches!(character, '{' | '}' | '[' | ']') {
                literal.push(character);
                continue;
            }
            let open = optional.as_mut().map_or(&mut parts, |(_, inner)| inner);
            if !literal.is_empty() {
                open.push(Part::Text(std::mem::take(&mut literal)));
            }
            match character {
                '{' => {
                    let end = text[at..].find('}').map(|length| at + length);
                    let Some(end) = end else {
                        return Err(error(at..at + 1, "`{` without `}`".to_owned(), "write {{ for a literal brace"));
                    };
                    let name = &text[at + 1..end];
                    let Some((_, field)) = Field::ALL.iter().find(|(known, _)| *known == name) else {
                        let nearest = crate::config::nearest(name, Field::ALL.map(|(known, _)| known));
                        let all = Field::ALL.map(|(known, _)| known).join(", ");
                        let hint =
                            nearest.map_or_else(|| format!("one of: {all}"), |one| format!("did you mean {{{one}}}?"));
                        return Err(error(at..end + 1, format!("unknown field `{name}`"), &hint));
                    };
                    open.push(Part::Field(*field));
                    while characters.next_if(|(offset, _)| *offset <= end).is_some() {}
                }
                '[' if optional.is_none() => optional = Some((at, Vec::new())),
                ']' if optional.is_some() => parts.extend(optional.take().map(|(_, inner)| Part::Optional(inner))),
                _ => {
                    let message = format!("unexpected `{character}`");
                    return Err(error(
                        at..at + 1,
                        message,
                        "double it for a literal character; brackets cannot be nested",
                    ));
                }
            }
        }
        if let Some((at, _)) = optional {
            return Err(error(at..at + 1, "`[` without `]`".to_owned(), "write [[ for a literal bracket"));
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }

    /// Returns the message. An unknown fact outside brackets becomes `?`.
    pub fn render(&self, facts: &MessageFacts) -> SafeText {
        SafeText::new(&render_parts(&self.0, facts, false).unwrap_or_default())
    }
}

fn render_parts(parts: &[Part], facts: &MessageFacts, is_optional: bool) -> Option<String> {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Field(field) => match facts.field(*field) {
                Some(text) => out.push_str(&text),
                None if is_optional => return None,
                None => out.push('?'),
            },
            Part::Optional(inner) => out.push_str(&render_parts(inner, facts, true).unwrap_or_default()),
        }
    }
    Some(out)
}

/// Formats bytes: `140 GiB`.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.0} GiB", bytes as f64 / f64::from(1_u32 << 30))
}

/// Formats a local time: `04:22`, or `20 Nov 04:22` if it is not today.
pub(super) fn local_time(moment: Moment, now: Moment, utc_offset_seconds: i32) -> Option<String> {
    let local = |moment: Moment| {
        let stamp = jiff::Timestamp::from_second(i64::try_from(moment.unix.as_secs()).ok()?).ok()?;
        Some(jiff::tz::Offset::from_seconds(utc_offset_seconds).ok()?.to_datetime(stamp))
    };
    let (then, today) = (local(moment)?, local(now)?);
    let format = if then.date() == today.date() { "%H:%M" } else { "%-d %b %H:%M" };
    Some(then.strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn facts() -> MessageFacts {
        MessageFacts {
            name: "Dmitri".into(),
            user: "dmitri".into(),
            host: "hgx-11".into(),
            program: "sft.py".into(),
            pid: Some(4471),
            gpu_indexes: vec![2, 3],
            memory_bytes: Some(140 << 30),
            held: Some("04:22".into()),
            fact: Some("Since 13:44 it draws 118 of 700 W, so it may be stuck.".into()),
            end: Some("kill 4471".into()),
            seen: "14:02".into(),
        }
    }

    #[test]
    fn the_built_in_template_leaves_out_unknown_facts() {
        let note = MessageTemplate::parse(DEFAULT_TEMPLATE).expect("the built-in template is right");
        assert_eq!(
            note.render(&facts()),
            "Hi Dmitri, on hgx-11 your `sft.py` (pid 4471) has held GPUs 2,3 (140 GiB) since 04:22. Since 13:44 it \
             draws 118 of 700 W, so it may be stuck. If you no longer need it: `kill 4471`. Seen 14:02."
        );
        let little = MessageFacts { gpu_indexes: vec![5], memory_bytes: None, held: None, fact: None, ..facts() };
        assert_eq!(
            note.render(&little),
            "Hi Dmitri, on hgx-11 your `sft.py` (pid 4471) has held GPU 5. If you no longer need it: `kill 4471`. Seen \
             14:02."
        );
    }

    #[test]
    fn a_custom_template_renders_one_safe_line() {
        let template =
            MessageTemplate::parse("{user}@{host} [[{pid}]]{{x}}[ {memory}]: {end}\u{1b}").expect("is right");
        let unknown = MessageFacts { memory_bytes: None, end: None, ..facts() };
        assert_eq!(template.render(&unknown), "dmitri@hgx-11 [4471]{x}: ?␛");
    }

    #[test]
    fn parse_errors_have_position_and_hint() {
        for (text, at, message, hint) in [
            ("Hi {nam}", 3..8, "unknown field `nam`", "did you mean {name}?"),
            (
                "{weather}",
                0..9,
                "unknown field `weather`",
                "one of: name, user, host, program, pid, gpus, memory, held, fact, end, seen",
            ),
            ("a {name", 2..3, "`{` without `}`", "write {{ for a literal brace"),
            ("a [b", 2..3, "`[` without `]`", "write [[ for a literal bracket"),
            ("a ] b", 2..3, "unexpected `]`", "double it for a literal character; brackets cannot be nested"),
            ("[a [b]]", 3..4, "unexpected `[`", "double it for a literal character; brackets cannot be nested"),
        ] {
            let error = MessageTemplate::parse(text).expect_err(text);
            assert_eq!((error.at, error.message.as_str(), error.hint.as_str()), (at, message, hint), "{text}");
        }
    }

    #[test]
    fn local_time_names_another_day() {
        let at = |seconds| Moment { unix: Duration::from_secs(seconds), ..Moment::default() };
        let now = at(1_763_042_551);
        assert_eq!(local_time(at(1_763_042_551 - 3600), now, 0).as_deref(), Some("13:02"));
        assert_eq!(local_time(at(1_763_042_551 - 86_400), now, 3600).as_deref(), Some("12 Nov 15:02"));
    }
}
