//! Takes secrets out of command lines before they leave the host.

/// What stands in place of a secret.
pub const REDACTED: &str = "***";

/// Parts of a name that say that its value is a secret. Compared in lower case, `-` read as `_`.
const SECRET_NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "access_key",
    "auth_key",
    "private_key",
    "credential",
];

/// Names that hold a secret though no part of them says so, compared whole.
const SECRET_WORDS: [&str; 4] = ["pwd", "pass", "key", "auth"];

/// Names that hold one of [`SECRET_NAMES`] and are known not to be secrets: tokens that are counted, or parts of a
/// model's vocabulary.
const PLAIN_NAMES: [&str; 8] =
    ["tokens", "tokenizer", "tokenize", "token_len", "token_id", "token_type", "tokenization", "per_token"];

/// Values that begin so are secrets wherever they stand: keys of Hugging Face, OpenAI, GitHub, Slack and AWS.
const SECRET_PREFIXES: [&str; 10] =
    ["hf_", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA"];

/// Returns the arguments with every value that looks like a secret replaced by [`REDACTED`].
///
/// Covered: `--token=X`, `--token X`, `-token X`, `TOKEN=X`, `token:X` of headers, `Authorization: Bearer X`,
/// credentials in URLs (`https://user:secret@host`), query parameters (`?api_key=X`) and values that carry a known
/// prefix (`hf_`, `sk-`, `ghp_`).
pub fn redact<S: AsRef<str>>(argv: &[S]) -> Vec<String> {
    let mut hide_next = false;
    argv.iter()
        .map(|argument| {
            let argument = argument.as_ref();
            let hide = std::mem::take(&mut hide_next);
            if hide && !argument.starts_with('-') {
                return REDACTED.to_owned();
            }
            let is_flag = argument.starts_with('-') && !argument.contains('=');
            hide_next = is_flag && is_secret_name(argument) || argument.eq_ignore_ascii_case("bearer");
            redact_argument(argument)
        })
        .collect()
}

fn redact_argument(argument: &str) -> String {
    if let Some((name, value)) = argument.split_once('=')
        && !name.contains("://")
        && !name.contains(' ')
        && !value.is_empty()
        && is_secret_name(name)
    {
        return format!("{name}={REDACTED}");
    }
    if let Some((name, value)) = argument.split_once(':')
        && !value.starts_with("//")
        && !value.trim().is_empty()
        && !name.contains(' ')
        && (is_secret_name(name) || name.eq_ignore_ascii_case("authorization"))
    {
        return format!("{name}: {REDACTED}");
    }
    // A shell command handed over as one argument (`sh -c '...'`) holds words of its own.
    if argument.contains(' ') {
        return redact(&argument.split(' ').collect::<Vec<_>>()).join(" ");
    }
    redact_query(&redact_prefixed(&redact_url(argument)))
}

fn is_secret_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_");
    let last = name.rsplit(['.', '/']).next().unwrap_or(&name);
    if PLAIN_NAMES.iter().any(|plain| last.contains(plain)) {
        return false;
    }
    SECRET_WORDS.contains(&last) || SECRET_NAMES.iter().any(|secret| last.contains(secret))
}

fn redact_url(argument: &str) -> String {
    let Some((scheme, rest)) = argument.split_once("://") else { return argument.to_owned() };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority_end].rfind('@') {
        Some(at) => {
            let user = rest[..at].split(':').next().unwrap_or_default();
            let shown = if rest[..at].contains(':') { format!("{user}:{REDACTED}") } else { REDACTED.to_owned() };
            format!("{scheme}://{shown}{}", &rest[at..])
        }
        None => argument.to_owned(),
    }
}

fn redact_prefixed(argument: &str) -> String {
    let start = argument.rfind(['=', ':', ',', '"', '\'']).map_or(0, |position| position + 1);
    let value = &argument[start..];
    let is_secret = SECRET_PREFIXES
        .iter()
        .any(|prefix| value.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 16 && rest.chars().all(is_key_char)));
    if is_secret { format!("{}{REDACTED}", &argument[..start]) } else { argument.to_owned() }
}

fn is_key_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

fn redact_query(argument: &str) -> String {
    let Some((before, query)) = argument.split_once('?') else { return argument.to_owned() };
    let parts: Vec<String> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((name, _)) if is_secret_name(name) => format!("{name}={REDACTED}"),
            _ => part.to_owned(),
        })
        .collect();
    format!("{before}?{}", parts.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        redact(&text.split('|').collect::<Vec<_>>()).join("|")
    }

    #[test]
    fn secrets_are_hidden() {
        for (given, shown) in [
            ("run|--token=abc", "run|--token=***"),
            ("run|--hf-token|abc|x", "run|--hf-token|***|x"),
            ("run|-password|abc", "run|-password|***"),
            ("WANDB_API_KEY=abc|python", "WANDB_API_KEY=***|python"),
            ("env|AWS_SECRET_ACCESS_KEY=a=b", "env|AWS_SECRET_ACCESS_KEY=***"),
            ("--trainer.wandb.api_key=x", "--trainer.wandb.api_key=***"),
            ("curl|-H|Authorization: Bearer abc", "curl|-H|Authorization: ***"),
            ("x-auth-token:abc", "x-auth-token: ***"),
            ("git|clone|https://bob:pw@host/x.git", "git|clone|https://bob:***@host/x.git"),
            ("https://abc@host/x", "https://***@host/x"),
            ("redis://:pw@host:6379", "redis://:***@host:6379"),
            ("https://host/x?a=1&api_key=abc&b=2", "https://host/x?a=1&api_key=***&b=2"),
            ("hf_abcdefghijklmnopqrstuv", "***"),
            ("--env=sk-abcdefghijklmnopqrstuv", "--env=***"),
            ("sh|-c|export TOKEN=abc; run --password abc x", "sh|-c|export TOKEN=*** run --password *** x"),
            ("sh|-c|curl -H Authorization: Bearer abc url", "sh|-c|curl -H Authorization: Bearer *** url"),
            ("--pass=abc", "--pass=***"),
        ] {
            assert_eq!(line(given), shown, "{given}");
        }
    }

    #[test]
    fn ordinary_arguments_stay() {
        for given in [
            "python|train.py|--max-tokens=4096|--tokenizer|llama",
            "--max_token_len=5",
            "--keys=4",
            "torchrun|--nproc_per_node|8|--rdzv_endpoint=host:29400",
            "http://host:8000/v1?x=1",
            "--token=",
            "--password|--verbose",
            "C:\\x",
            "monkey=1",
            "/data/secrets/x.bin",
            "sk-short",
        ] {
            assert_eq!(line(given), given, "{given}");
        }
    }
}
