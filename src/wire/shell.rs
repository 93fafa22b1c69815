//! Text as words of a shell command that a person may copy and run.
//!
//! Text of a host must not change the command: it stays one word, and no program takes it for an option.

/// Quotes a word for a POSIX shell.
pub fn shell_word(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "@%+=:,./-_".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the id of a job or container, or the name of a systemd unit, if a command may contain it unquoted: ASCII
/// letters, digits and `_.+-@:`, the first one a letter or a digit.
pub fn plain_id(id: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-@:".contains(&byte);
    let begins_plain = id.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    (begins_plain && id.bytes().all(is_plain)).then_some(id)
}

/// Quotes an absolute path; `None` for any other text.
pub fn absolute_path(path: &str) -> Option<String> {
    path.starts_with('/').then(|| shell_word(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_word_quotes_special_characters() {
        for plain in ["gpu-01", "alice@10.0.0.7", "/data/x_1.log", "a=b,c:d%e+f"] {
            assert_eq!(shell_word(plain), plain);
        }
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("$(x)'y"), r"'$(x)'\''y'");
    }

    #[test]
    fn a_shell_reads_back_the_quoted_word() {
        for word in ["a b", "$(touch x)", "`id`", "a;b|c&d>e<f", "it's", "\\", "*?[a]", "~", "#x", "{a,b}", "-n", "!1"]
        {
            let command = format!("printf %s {}", shell_word(word));
            let output = std::process::Command::new("/bin/sh").args(["-c", &command]).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), word, "{command}");
        }
    }

    #[test]
    fn only_ids_without_a_meaning_for_shell_or_program_are_plain() {
        for id in ["3385", "3385_4", "3385+1", "0123456789ab", "my-vm", "ollama.service", "user@1000.service", "a:b"] {
            assert_eq!(plain_id(id), Some(id));
        }
        for id in ["", "-n", "1; touch /tmp/x #", "`id`", "$(id)", "a b", "a|sh", "../x", "a\\x2db", "ä", "_x", "a'b"]
        {
            assert_eq!(plain_id(id), None, "{id}");
        }
    }

    #[test]
    fn only_absolute_paths_are_operands() {
        assert_eq!(absolute_path("/data/x").as_deref(), Some("/data/x"));
        assert_eq!(absolute_path("/data/a b;c").as_deref(), Some("'/data/a b;c'"));
        assert_eq!(absolute_path("-x"), None);
        assert_eq!(absolute_path(""), None);
    }
}
