//! The note to somebody whose GPU is idle or may hang: a template, and the facts that fill it.

use crate::fleet::{GpuListStyle, Moment, format_gpu_list};
use crate::wire::SafeText;
use std::ops::Range;

/// The template that is built in.
pub const DEFAULT_TEMPLATE: &str = "Hi {name}, on {host} your `{program}` (pid {pid}) has held {gpus}[ ({memory})][ since {held}].\
[ {fact}] If you no longer need it: `{end}`. Seen {seen}.";

/// A template: `{field}` is a fact, and what stands in brackets is left out where a fact in it is not known. A doubled
/// brace or bracket stands for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
    Optional(Vec<Part>),
}

/// A fact that a template may name.
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

/// What is wrong with a template, and where, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// The part that is meant.
    pub at: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub hint: String,
}

/// What is known; what is not is `None`, and never made up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFacts {
    /// First name, where the host knows a full one, else the user.
    pub name: String,
    /// The user.
    pub user: String,
    /// The host.
    pub host: String,
    /// What a person would call the process.
    pub program: String,
    /// Its pid, or its launcher's.
    pub pid: Option<u32>,
    /// Indexes of the GPUs that it holds.
    pub gpu_indexes: Vec<u32>,
    /// Memory that it holds on them, in bytes.
    pub memory_bytes: Option<u64>,
    /// When it began, as local time.
    pub held: Option<String>,
    /// What is wrong, as a sentence.
    pub fact: Option<String>,
    /// What ends it.
    pub end: Option<String>,
    /// When this was seen, as local time.
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
        // The built-in text is tested to be right.
        Self::parse(DEFAULT_TEMPLATE).unwrap_or_else(|_| Self(vec![Part::Text(DEFAULT_TEMPLATE.to_owned())]))
    }
}

impl MessageTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// Where a field is not known, or a brace or bracket has no partner.
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
                        return Err(error(at..at + 1, "this `{` has no `}`".to_owned(), "write {{ for the brace"));
                    };
                    let name = &text[at + 1..end];
                    let Some((_, field)) = Field::ALL.iter().find(|(known, _)| *known == name) else {
                        let nearest = crate::config::nearest(name, Field::ALL.map(|(known, _)| known));
                        let all = Field::ALL.map(|(known, _)| known).join(", ");
                        let hint =
                            nearest.map_or_else(|| format!("one of: {all}"), |one| format!("did you mean {{{one}}}?"));
                        return Err(error(at..end + 1, format!("there is no field `{name}`"), &hint));
                    };
                    open.push(Part::Field(*field));
                    while characters.next_if(|(offset, _)| *offset <= end).is_some() {}
                }
                '[' if optional.is_none() => optional = Some((at, Vec::new())),
                ']' if optional.is_some() => parts.extend(optional.take().map(|(_, inner)| Part::Optional(inner))),
                _ => {
                    let message = format!("this `{character}` stands alone, or within another");
                    return Err(error(at..at + 1, message, "double it for the character itself"));
                }
            }
        }
        if let Some((at, _)) = optional {
            return Err(error(at..at + 1, "this `[` has no `]`".to_owned(), "write [[ for the bracket"));
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }

    /// The note. A fact that is not known and stands outside brackets is a `?`.
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

/// `140 GiB`.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.0} GiB", bytes as f64 / f64::from(1_u32 << 30))
}

/// `04:22`, with the day where that is another than today's: `20 Nov 04:22`.
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
    fn the_note_says_what_is_known_and_nothing_else() {
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
    fn a_template_of_ones_own_is_filled_and_stays_one_safe_line() {
        let template =
            MessageTemplate::parse("{user}@{host} [[{pid}]]{{x}}[ {memory}]: {end}\u{1b}").expect("is right");
        let unknown = MessageFacts { memory_bytes: None, end: None, ..facts() };
        assert_eq!(template.render(&unknown), "dmitri@hgx-11 [4471]{x}: ?␛");
    }

    #[test]
    fn what_is_wrong_with_a_template_is_said_with_its_place() {
        for (text, at, message, hint) in [
            ("Hi {nam}", 3..8, "there is no field `nam`", "did you mean {name}?"),
            (
                "{weather}",
                0..9,
                "there is no field `weather`",
                "one of: name, user, host, program, pid, gpus, memory, held, fact, end, seen",
            ),
            ("a {name", 2..3, "this `{` has no `}`", "write {{ for the brace"),
            ("a [b", 2..3, "this `[` has no `]`", "write [[ for the bracket"),
            ("a ] b", 2..3, "this `]` stands alone, or within another", "double it for the character itself"),
            ("[a [b]]", 3..4, "this `[` stands alone, or within another", "double it for the character itself"),
        ] {
            let error = MessageTemplate::parse(text).expect_err(text);
            assert_eq!((error.at, error.message.as_str(), error.hint.as_str()), (at, message, hint), "{text}");
        }
    }

    #[test]
    fn another_day_is_named() {
        let at = |seconds| Moment { unix: Duration::from_secs(seconds), ..Moment::default() };
        let now = at(1_763_042_551);
        assert_eq!(local_time(at(1_763_042_551 - 3600), now, 0).as_deref(), Some("13:02"));
        assert_eq!(local_time(at(1_763_042_551 - 86_400), now, 3600).as_deref(), Some("12 Nov 15:02"));
    }
}
