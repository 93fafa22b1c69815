//! Removes secrets from command lines and environments before they leave the host. For a host without a probe, the
//! controller applies it.

/// Replaces a secret.
pub const REDACTED: &str = "***";

/// Substrings of names whose values are secrets. Names are compared in lower case, with `-` as `_`.
const SECRET_SUBSTRINGS: [&str; 16] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "access_key",
    "account_key",
    "auth_key",
    "private_key",
    "credential",
    "signature",
    "cookie",
    "connection_string",
    "license_key",
];

/// Complete names whose values are secrets.
const SECRET_EXACT_NAMES: [&str; 7] = ["pwd", "pass", "key", "auth", "sig", "jwt", "pat"];

/// Endings of names whose values are secrets (`DB_PASS`, `MYSQL_PWD`). `_key` is not one of them: it names sort keys
/// and columns.
const SECRET_SUFFIXES: [&str; 5] = ["_pwd", "_pass", "_sig", "_jwt", "_pat"];

/// Substrings of names that contain one of [`SECRET_SUBSTRINGS`] but hold no secret: counts of tokens and parts of a
/// model's vocabulary.
const NOT_SECRET_SUBSTRINGS: [&str; 14] = [
    "tokens",
    "tokenizer",
    "tokenize",
    "token_len",
    "token_id",
    "token_type",
    "token_count",
    "token_drop",
    "token_dim",
    "token_budget",
    "num_token",
    "max_token",
    "tokenization",
    "per_token",
];

/// Values that are never secrets, such as the switch in `--use_auth_token true`.
const NOT_SECRET_VALUES: [&str; 8] = ["true", "false", "none", "null", "yes", "no", "0", "1"];

/// Prefixes of values that are secrets under any name: keys of Hugging Face, OpenAI and Anthropic, Stripe, GitHub,
/// GitLab, Slack, AWS, Google, NVIDIA, Groq, Replicate, npm, PyPI, Grafana, and JSON web tokens.
const TOKEN_PREFIXES: [&str; 26] = [
    "hf_",
    "sk-",
    "sk_live_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "nvapi-",
    "gsk_",
    "r8_",
    "npm_",
    "pypi-",
    "glsa_",
    "eyJ",
];

/// URLs whose path is a secret.
const SECRET_URL_PREFIXES: [&str; 3] = ["hooks.slack.com/", "discord.com/api/webhooks/", "webhook.office.com/"];

/// Options whose value is `user:secret`, as in curl.
const LOGIN_OPTIONS: [&str; 4] = ["-u", "--user", "-U", "--proxy-user"];

/// The rule for the following arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RedactNext {
    Nothing,
    /// The next argument, unless it is an option.
    Value,
    /// The part of the next argument after the colon.
    Login,
    /// All arguments up to the one with this quotation mark.
    UntilQuote(char),
}

/// Returns the arguments with every value that looks like a secret replaced by [`REDACTED`].
///
/// Covered: `--token=X`, `--token X`, `-token X`, `TOKEN=X`, `TOKEN="X Y"` in a shell command, `token:X` in headers and
/// `"token": "X"` in JSON, `Authorization: Bearer X`, `curl -u user:X`, `sshpass -p X`, credentials in URLs
/// (`https://user:secret@host`), query parameters (`?api_key=X`), webhook URLs, and values with a known prefix (`hf_`,
/// `sk-`, `ghp_`).
pub fn redact<S: AsRef<str>>(argv: &[S]) -> Vec<String> {
    let mut redact_next = RedactNext::Nothing;
    // `-p` is always the password of sshpass.
    let password_option = argv.first().is_some_and(|program| program.as_ref().rsplit('/').next() == Some("sshpass"));
    argv.iter()
        .map(|argument| {
            let argument = argument.as_ref();
            let redacted = match std::mem::replace(&mut redact_next, RedactNext::Nothing) {
                RedactNext::UntilQuote(quote) => {
                    if !argument.contains(quote) {
                        redact_next = RedactNext::UntilQuote(quote);
                    }
                    return REDACTED.to_owned();
                }
                RedactNext::Value if !argument.starts_with('-') && !is_not_secret_value(argument) => {
                    redact_next = unclosed_quote(argument);
                    return REDACTED.to_owned();
                }
                RedactNext::Login => redact_login(argument),
                RedactNext::Nothing | RedactNext::Value => None,
            };
            if let Some(redacted) = redacted {
                return redacted;
            }
            if password_option && argument.starts_with("-p") {
                if argument.len() > 2 {
                    return format!("-p{REDACTED}");
                }
                redact_next = RedactNext::Value;
                return argument.to_owned();
            }
            redact_next = redaction_after(argument);
            redact_argument(argument)
        })
        .collect()
}

/// Returns what to redact after this argument.
fn redaction_after(argument: &str) -> RedactNext {
    if LOGIN_OPTIONS.contains(&argument) {
        return RedactNext::Login;
    }
    let is_option = argument.starts_with('-') && !argument.contains('=');
    let expects_value = argument.ends_with(['=', ':']);
    if (is_option || expects_value) && is_secret_name(argument.trim_end_matches(['=', ':'])) {
        return RedactNext::Value;
    }
    if argument.eq_ignore_ascii_case("bearer") || argument == "Basic" {
        return RedactNext::Value;
    }
    match argument.split_once('=') {
        Some((name, value)) if is_secret_name(name) => unclosed_quote(value),
        _ => RedactNext::Nothing,
    }
}

/// Returns [`RedactNext::UntilQuote`] if a quotation starts here and does not end.
fn unclosed_quote(value: &str) -> RedactNext {
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) if !value[1..].contains(quote) => RedactNext::UntilQuote(quote),
        _ => RedactNext::Nothing,
    }
}

fn is_not_secret_value(value: &str) -> bool {
    NOT_SECRET_VALUES.iter().any(|plain| value.eq_ignore_ascii_case(plain))
}

/// Redacts `alice:secret`; `None` without a colon, since `-u` has other meanings elsewhere.
fn redact_login(argument: &str) -> Option<String> {
    let (user, secret) = argument.split_once(':')?;
    // Two numbers are a user and a group.
    let is_number = secret.bytes().all(|byte| byte.is_ascii_digit());
    (!is_number && !secret.starts_with("//")).then(|| format!("{user}:{REDACTED}"))
}

fn redact_argument(argument: &str) -> String {
    if let Some((name, value)) = argument.split_once('=')
        && !name.contains("://")
        && !name.contains(' ')
        && !value.is_empty()
        && !is_not_secret_value(value)
    {
        if is_secret_name(name) {
            return format!("{name}={REDACTED}");
        }
        if LOGIN_OPTIONS.contains(&name)
            && let Some(redacted) = redact_login(value)
        {
            return format!("{name}={redacted}");
        }
    }
    if let Some((name, value)) = argument.split_once(':')
        && !value.starts_with("//")
        && !value.trim().is_empty()
        && !is_not_secret_value(value.trim())
        && !name.contains(' ')
        && (is_secret_name(name) || name.eq_ignore_ascii_case("authorization"))
    {
        return format!("{name}: {REDACTED}");
    }
    // A shell command in one argument (`sh -c '...'`) contains several words.
    if argument.contains(' ') {
        return redact(&argument.split(' ').collect::<Vec<_>>()).join(" ");
    }
    redact_query(&redact_known_token(&redact_url(argument)))
}

fn is_secret_name(name: &str) -> bool {
    // Set by the shell: the current and the previous directory.
    if name == "PWD" || name == "OLDPWD" {
        return false;
    }
    let name = name.trim_matches(|letter: char| !letter.is_alphanumeric()).to_ascii_lowercase().replace('-', "_");
    let last = name.rsplit(['.', '/']).next().unwrap_or(&name);
    if NOT_SECRET_SUBSTRINGS.iter().any(|plain| last.contains(plain)) {
        return false;
    }
    SECRET_EXACT_NAMES.contains(&last)
        || SECRET_SUFFIXES.iter().any(|ending| last.ends_with(ending))
        || SECRET_SUBSTRINGS.iter().any(|secret| last.contains(secret))
}

fn redact_url(argument: &str) -> String {
    if let Some(end) = SECRET_URL_PREFIXES.iter().find_map(|address| Some(argument.find(address)? + address.len())) {
        return format!("{}{REDACTED}", &argument[..end]);
    }
    let Some((scheme, rest)) = argument.split_once("://") else { return argument.to_owned() };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority_end].rfind('@') {
        Some(at) => {
            let user = rest[..at].split(':').next().unwrap_or_default();
            let redacted = if rest[..at].contains(':') { format!("{user}:{REDACTED}") } else { REDACTED.to_owned() };
            format!("{scheme}://{redacted}{}", &rest[at..])
        }
        None => argument.to_owned(),
    }
}

fn redact_known_token(argument: &str) -> String {
    let start = argument.rfind(['=', ':', ',', '"', '\'']).map_or(0, |position| position + 1);
    let value = &argument[start..];
    let is_secret = TOKEN_PREFIXES.iter().any(|prefix| {
        value.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 16 && rest.chars().all(is_token_char))
    });
    if is_secret { format!("{}{REDACTED}", &argument[..start]) } else { argument.to_owned() }
}

fn is_token_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
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
    fn secrets_are_redacted() {
        for (given, redacted) in [
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
            ("DB_PASS=abc|MYSQL_PWD=abc|GITLAB_PAT=abc", "DB_PASS=***|MYSQL_PWD=***|GITLAB_PAT=***"),
            ("curl|-u|alice:abc|https://host", "curl|-u|alice:***|https://host"),
            ("curl|--user=alice:abc", "curl|--user=alice:***"),
            ("sshpass|-p|abc|ssh|host", "sshpass|-p|***|ssh|host"),
            ("/usr/bin/sshpass|-pabc|ssh|-p|22|host", "/usr/bin/sshpass|-p***|ssh|-p|***|host"),
            ("sh|-c|export TOKEN=\"a b\" run x", "sh|-c|export TOKEN=*** *** run x"),
            ("sh|-c|run --password 'a b c' x", "sh|-c|run --password *** *** *** x"),
            ("--config={\"api_key\":\"abc\"}", "--config={\"api_key\": ***"),
            ("{\"lr\": 1, \"api_key\": \"abc\", \"x\": 2}", "{\"lr\": 1, \"api_key\": *** \"x\": 2}"),
            ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
            ("https://s3/x?X-Amz-Signature=abc&X-Amz-Date=1", "https://s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
            ("https://blob/x?sv=2&sig=abc", "https://blob/x?sv=2&sig=***"),
            ("--endpoint=nvapi-abcdefghijklmnopqrst", "--endpoint=***"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
            ("Cookie:session=abc", "Cookie:session=***"),
        ] {
            assert_eq!(line(given), redacted, "{given}");
        }
    }

    #[test]
    fn ordinary_arguments_are_unchanged() {
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
            "python|-u|train.py",
            "docker|run|--user|1000:1000",
            "PWD=/home/alice|OLDPWD=/",
            "--use_auth_token|true|--use_auth_token=True",
            "--sort_key=name|--image-key|jpg",
            "--max_token=4096|--num-token-drop=2",
            "ssh|-p|22|host",
            "--compat=1|--path=/x",
        ] {
            assert_eq!(line(given), given, "{given}");
        }
    }
}
