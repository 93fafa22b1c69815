//! Host lists in the syntax of Slurm, ClusterShell and pdsh: `hgx-[01-04]`, `a,b`, `r[1-2]n[1,3,5-7]`.

use super::Diagnostic;

/// The maximum number of hosts in a nodeset and in a fleet.
pub(super) const MAX_HOSTS: usize = 10_000;

/// The maximum length of a host name, as in DNS.
const MAX_NAME_BYTES: usize = 253;

/// The maximum number of digits in brackets; longer numbers would overflow.
const MAX_DIGITS: usize = 15;

/// Returns the host names of a nodeset in written order. With several brackets, the last one varies fastest. Zero
/// padding is kept: `[08-10]` gives `08`, `09`, `10`.
///
/// # Errors
/// The diagnostic's range is in bytes of `text`.
pub(super) fn expand(text: &str) -> Result<Vec<String>, Diagnostic> {
    let items = split_list(text)?;
    let mut names = Vec::new();
    for (start, item) in items {
        let parts = parse_item(item, start)?;
        let count = parts.iter().try_fold(1_usize, |product, part| product.checked_mul(part.count()));
        if count.is_none_or(|count| count > MAX_HOSTS - names.len()) {
            return Err(Diagnostic::at(
                start..start + item.len(),
                format!("more than {MAX_HOSTS} hosts in one nodeset"),
                "split it into several files",
            ));
        }
        let longest: usize = parts.iter().map(Part::longest).sum();
        if longest > MAX_NAME_BYTES {
            return Err(Diagnostic::at(
                start..start + item.len(),
                format!("a host name of {longest} bytes; the limit is {MAX_NAME_BYTES}"),
                "a name is what `ssh NAME` accepts; use `note` for remarks",
            ));
        }
        names.extend(combine(&parts));
    }
    Ok(names)
}

/// Whether the text is a list or contains brackets.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['[', ']', ','])
}

/// A part of a name: literal text or a bracket with its ranges.
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// A number `7` or a range `01-04` with its padding.
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Part<'_> {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().map(Range::count).fold(0, usize::saturating_add),
        }
    }

    fn longest(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Numbers(ranges) => ranges.iter().map(|range| range.format(range.last).len()).max().unwrap_or(0),
        }
    }

    fn words(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![(*text).to_owned()],
            Self::Numbers(ranges) => {
                ranges.iter().flat_map(|range| (range.first..=range.last).map(|number| range.format(number))).collect()
            }
        }
    }
}

impl Range {
    fn count(&self) -> usize {
        usize::try_from(self.last - self.first).map_or(usize::MAX, |difference| difference.saturating_add(1))
    }

    fn format(&self, number: u64) -> String {
        format!("{number:0width$}", width = self.width)
    }
}

fn combine(parts: &[Part<'_>]) -> Vec<String> {
    parts.iter().fold(vec![String::new()], |names, part| {
        let words = part.words();
        names.iter().flat_map(|name| words.iter().map(move |word| format!("{name}{word}"))).collect()
    })
}

/// Splits at the commas outside of brackets and returns each item with its offset. Spaces around an item are dropped.
fn split_list(text: &str) -> Result<Vec<(usize, &str)>, Diagnostic> {
    let mut items = Vec::new();
    let (mut start, mut open) = (0, None);
    for (at, character) in text.char_indices() {
        match character {
            '[' if open.is_some() => {
                return Err(Diagnostic::at(at..at + 1, "a bracket within a bracket", "write it as `a[1-4]b[1-2]`"));
            }
            '[' => open = Some(at),
            ']' if open.is_none() => {
                return Err(Diagnostic::at(at..at + 1, "`]` without `[`", "write a range as `[01-04]`"));
            }
            ']' => open = None,
            ',' if open.is_none() => {
                items.push((start, &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    if let Some(at) = open {
        return Err(Diagnostic::at(at..text.len(), "`[` without `]`", "write a range as `[01-04]`"));
    }
    items.push((start, &text[start..]));
    items.into_iter().map(|(start, item)| trimmed(text, start, item)).collect()
}

fn trimmed<'a>(text: &str, start: usize, item: &'a str) -> Result<(usize, &'a str), Diagnostic> {
    let name = item.trim_matches(' ');
    if !name.is_empty() {
        return Ok((start + item.len() - item.trim_start_matches(' ').len(), name));
    }
    let message = if text.trim().is_empty() { "an empty host name" } else { "an empty name in the list" };
    Err(Diagnostic::at(start..start + item.len(), message, "names are separated by single commas: `a,b`"))
}

fn parse_item(item: &str, start: usize) -> Result<Vec<Part<'_>>, Diagnostic> {
    let mut parts = Vec::new();
    let mut rest = item;
    while !rest.is_empty() {
        let at = start + item.len() - rest.len();
        // `split_list` has checked that brackets are balanced and not nested.
        if let Some((inside, after)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            parts.push(Part::Numbers(parse_ranges(inside, at + 1)?));
            rest = after;
        } else {
            let (text, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
            parts.push(Part::Text(text));
            rest = after;
        }
    }
    Ok(parts)
}

fn parse_ranges(inside: &str, start: usize) -> Result<Vec<Range>, Diagnostic> {
    let mut ranges = Vec::new();
    let mut at = start;
    for item in inside.split(',') {
        let leading = item.len() - item.trim_start_matches(' ').len();
        ranges.push(parse_range(item.trim_matches(' '), at + leading)?);
        at += item.len() + 1;
    }
    Ok(ranges)
}

fn parse_range(item: &str, at: usize) -> Result<Range, Diagnostic> {
    let (first_text, last_text) = item.split_once('-').unwrap_or((item, item));
    let first = parse_number(first_text, at)?;
    let last = parse_number(last_text, at + item.len() - last_text.len())?;
    let span = at..at + item.len();
    if first > last {
        let hint = format!("write `{last_text}-{first_text}`");
        return Err(Diagnostic::at(span, "the range runs backwards", hint));
    }
    let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
    if is_padded(last_text) && first_text.len() != last_text.len() {
        let hint = format!("pad both ends alike: `{first:0width$}-{last_text}`", width = last_text.len());
        return Err(Diagnostic::at(span, "the ends of the range are padded differently", hint));
    }
    Ok(Range { first, last, width: if is_padded(first_text) { first_text.len() } else { 0 } })
}

fn parse_number(text: &str, at: usize) -> Result<u64, Diagnostic> {
    let span = at..at + text.len();
    if text.is_empty() {
        return Err(Diagnostic::at(span, "a number is missing in the brackets", "write a range as `[01-04]`"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let hint = "brackets hold numbers and ranges, as `[1,3,5-7]`; names are listed without brackets: `a,b`";
        return Err(Diagnostic::at(span, format!("`{text}` is not a number"), hint));
    }
    let number = if text.len() > MAX_DIGITS { None } else { text.parse().ok() };
    number.ok_or_else(|| Diagnostic::at(span, "the number has too many digits", format!("the limit is {MAX_DIGITS}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<String> {
        expand(text).unwrap_or_else(|diagnostic| panic!("{text}: {diagnostic:?}"))
    }

    #[test]
    fn nodesets_expand_as_in_slurm_and_clustershell() {
        assert_eq!(names("gpu1"), ["gpu1"]);
        assert_eq!(names("a,b"), ["a", "b"]);
        assert_eq!(names("a, b"), ["a", "b"]);
        assert_eq!(names("hgx-[01-04]"), ["hgx-01", "hgx-02", "hgx-03", "hgx-04"]);
        assert_eq!(names("n[1,3,5-7]"), ["n1", "n3", "n5", "n6", "n7"]);
        assert_eq!(names("[1,3]"), ["1", "3"]);
        assert_eq!(names("r[1-2]n[08-10]x"), ["r1n08x", "r1n09x", "r1n10x", "r2n08x", "r2n09x", "r2n10x"]);
        assert_eq!(names("n[098-101]"), ["n098", "n099", "n100", "n101"]);
        assert_eq!(names("n[8-11]"), ["n8", "n9", "n10", "n11"]);
        assert_eq!(names("n[09-100]").last().map(String::as_str), Some("n100"));
        assert_eq!(names("a[1-2],b,c[0]"), ["a1", "a2", "b", "c0"]);
    }

    #[test]
    fn each_error_has_a_range_and_a_message() {
        let span = |text: &str| {
            let diagnostic = expand(text).expect_err(text);
            (diagnostic.at.start, diagnostic.at.end, diagnostic.message)
        };
        let table = [
            ("", 0, 0, "an empty host name"),
            ("  ", 0, 2, "an empty host name"),
            ("a,,b", 2, 2, "an empty name in the list"),
            ("a,", 2, 2, "an empty name in the list"),
            ("hgx-[01-04", 4, 10, "`[` without `]`"),
            ("hgx-01]", 6, 7, "`]` without `[`"),
            ("a[1[2]]", 3, 4, "a bracket within a bracket"),
            ("a[]", 2, 2, "a number is missing in the brackets"),
            ("a[1,]", 4, 4, "a number is missing in the brackets"),
            ("a[1-]", 4, 4, "a number is missing in the brackets"),
            ("a[x-3]", 2, 3, "`x` is not a number"),
            ("a[1, é]", 5, 7, "`é` is not a number"),
            ("b,a[4-1]", 4, 7, "the range runs backwards"),
            ("a[1-04]", 2, 6, "the ends of the range are padded differently"),
            ("a[1-1000000000000000]", 4, 20, "the number has too many digits"),
        ];
        for (text, start, end, message) in table {
            assert_eq!(span(text), (start, end, message.to_owned()), "{text}");
        }
    }

    #[test]
    fn huge_nodesets_are_rejected_before_they_are_expanded() {
        for text in
            ["a[1-10001]", "a[0-999999999999999]", "a[0-99]b[0-99]c[0-99]d[0-99]e[0-99]f[0-99]", "a[1-9999],b[1-2]"]
        {
            let diagnostic = expand(text).expect_err(text);
            assert_eq!(diagnostic.message, "more than 10000 hosts in one nodeset", "{text}");
        }
        assert_eq!(names("a[1-10000]").len(), MAX_HOSTS);
        let long = format!("{}[1-10]", "x".repeat(252));
        assert_eq!(expand(&long).expect_err("long").message, "a host name of 254 bytes; the limit is 253");
    }

    proptest! {
        #[test]
        fn a_range_keeps_padding_order_and_count(first in 0_u64..2000, length in 0_u64..200, width in 0_usize..6) {
            let last = first + length;
            let text = format!("n[{first:0width$}-{last:0width$}]-x");
            // Without leading zeros there is no padding to keep.
            let expected: Vec<String> = (first..=last).map(|number| format!("n{number:0width$}-x")).collect();
            let padded = format!("{first:0width$}").starts_with('0') && first > 0 || width <= format!("{first}").len();
            if padded || first == 0 && width > 1 {
                prop_assert_eq!(names(&text), expected);
            } else {
                prop_assert_eq!(expand(&text).map(|names| names.len()), Ok(length as usize + 1));
            }
        }

        #[test]
        fn any_text_gives_names_or_a_valid_range(text in "[a-c0-3\\[\\],\\- é]{0,12}") {
            match expand(&text) {
                Ok(names) => {
                    prop_assert!(!names.is_empty());
                    prop_assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['[', ']', ','])));
                }
                Err(diagnostic) => {
                    prop_assert!(diagnostic.at.end <= text.len());
                    prop_assert!(text.get(diagnostic.at).is_some());
                }
            }
        }

        #[test]
        fn two_brackets_multiply_and_the_last_one_varies_fastest(a in 1_u64..9, b in 1_u64..9) {
            let names = names(&format!("x[1-{a}]y[1-{b}]"));
            prop_assert_eq!(names.len() as u64, a * b);
            let expected: Vec<String> = (1..=a).flat_map(|i| (1..=b).map(move |j| format!("x{i}y{j}"))).collect();
            prop_assert_eq!(names, expected);
        }
    }
}
