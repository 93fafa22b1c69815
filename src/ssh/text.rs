//! Commands that can be pasted.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("/home/a/.ssh/known_hosts"), "/home/a/.ssh/known_hosts");
        assert_eq!(shell_word("[gpu01]:2222"), "'[gpu01]:2222'");
        assert_eq!(shell_word("a'b c"), r"'a'\''b c'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(ssh_target("bob", "gpu01", 22), "bob@gpu01");
        assert_eq!(ssh_target("bob", "gpu01;x", 2222), "-p 2222 'bob@gpu01;x'");
    }
}
