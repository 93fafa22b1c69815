//! Words for people: causes of errors, and commands that can be pasted.

use std::io;

/// What an IO error says, without the number that Rust adds for programmers.
pub(super) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or(text).to_owned()
}

/// `word` as one word of a POSIX shell.
pub(super) fn shell_word(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,~".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// `[-p PORT ]USER@HOST`, as ssh and its relatives take it.
pub(super) fn ssh_target(user: &str, hostname: &str, port: u16) -> String {
    let target = shell_word(&format!("{user}@{hostname}"));
    if port == 22 { target } else { format!("-p {port} {target}") }
}

/// A duration as people write it: `10 s`, `1.5 s`.
pub(super) fn seconds(duration: std::time::Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("/home/a/.ssh/known_hosts"), "/home/a/.ssh/known_hosts");
        assert_eq!(shell_word("[gpu01]:2222"), "'[gpu01]:2222'");
        assert_eq!(shell_word("a'b c"), r"'a'\''b c'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(ssh_target("bob", "gpu01", 22), "bob@gpu01");
        assert_eq!(ssh_target("bob", "gpu01;x", 2222), "-p 2222 'bob@gpu01;x'");
    }

    #[test]
    fn causes_and_durations() {
        assert_eq!(cause(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(seconds(Duration::from_secs(10)), "10 s");
        assert_eq!(seconds(Duration::from_millis(300)), "0.3 s");
    }
}
