//! Removes secrets from command lines, environments and logs before they leave the host. For a host without a probe, the
//! controller applies it.
//!
//! Each argument is scanned once, word by word. A word can be the name of a secret, an option of a known program, or a
//! known kind of token; quotation marks, brackets and operators around it decide where its value begins and ends. So one
//! scan handles arguments, shell commands, Python code, JSON, headers and URLs.
//!
//! A secret without a name cannot be recognised, for example the third argument of `htpasswd -b FILE USER SECRET`.

/// Replaces a secret.
pub const REDACTED: &str = "***";

// The lists are one text each, because a list of texts takes 40 bytes more per word in the probe.

/// Ends of names whose values are secrets, in lower case without `_` and `-`.
const SECRET_ENDS: &str = "password passwd passphrase secret token apikey accesskey accountkey authkey privatekey \
    secretkey encryptionkey licensekey masterkey storagekey wandbkey credential credentials signature cookie \
    connectionstring bearer authorization requirepass masterauth storepass keypass";

/// Last words of names whose values are secrets (`DB_PASS`, `MYSQL_PWD`).
const SECRET_LAST_WORDS: &str = "pwd pass pw sig jwt pat auth";

/// Last words of names that contain the name of a secret but whose values are no secrets (`--password-file`).
const HARMLESS_LAST_WORDS: &str = "file path dir fd stdin name type length";

/// Values that are never secrets, such as the switch in `--use_auth_token true`.
const PLAIN_VALUES: &str = "true false none null yes no lambda 0 1";

/// Authentication schemes, which precede the secret in a header.
const SCHEMES: &str = "bearer basic token digest apikey";

/// Words that precede a secret.
const BEFORE_SECRET: &str = "bearer obscure authtoken add-authtoken encrypt_string";

/// Commands that set a named value (`aws configure set NAME VALUE`).
const SETTERS: &str = "set setenv set-environment";

/// Options whose value is `user:secret`.
const LOGIN_OPTIONS: &str = "-u --user -U --proxy-user";

/// Prefixes of secrets under any name, at least 16 characters longer: keys of Hugging Face, OpenAI, Anthropic and
/// OpenRouter, Stripe, GitHub, GitLab, Slack, AWS, Google, NVIDIA, Groq, Replicate, npm, PyPI, Grafana, Vault, Docker,
/// Tailscale, DigitalOcean, SendGrid, xAI, Perplexity and age, and JSON web tokens.
const TOKEN_PREFIXES: &str = "hf_ sk- sk_live_ rk_live_ ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- xoxa- xoxb- xoxp- \
    xoxs- xapp- AKIA ASIA AIza nvapi- gsk_ r8_ npm_ pypi- glsa_ hvs. dckr_pat_ tskey- ya29. dop_v1_ SG. xai- pplx- \
    AGE-SECRET-KEY- eyJ";

/// URLs whose path is a secret.
const SECRET_URLS: &str = "hooks.slack.com/ discord.com/api/webhooks/ webhook.office.com/ api.telegram.org/bot";

/// Programs with the letters of options whose value is a secret, or a login for `u` and `U`. `*` stands for the rest of
/// the name, and `!` follows a letter whose value is part of the same argument. Programs without letters end the options
/// of an earlier one (`sshpass -p SECRET ssh -p 22`).
const PROGRAMS: &str = "sshpass:p ssh: scp: sftp: rsync: ssh-keygen:NP mysql*:p! mariadb*:p! redis-cli:a \
    redis-benchmark:a ldap*:w mongo*:p login:p curl:uU smbclient:U rpcclient:U lftp:u sqlcmd:P tsql:P bcp:P cqlsh:p \
    mosquitto_pub:P mosquitto_sub:P ipmitool:P snmp*:cAX zip:P unzip:P 7z*:p! rar:p! unrar:p! twine:p \
    useradd:p usermod:p rdesktop:p kadmin:w doctl:t";

/// How certain a name is to name a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    /// It does not.
    No,
    /// The value decides (`--wandb-run-key`, `token_file`).
    Low,
    /// An environment variable that contains the name of a secret (`TOKEN_PROD`), or any name that contains that of a
    /// password (`--password-old`). Numbers and paths are no secrets.
    Medium,
    /// A token or a key. Numbers are counts or ids.
    High,
    /// A password.
    Password,
}

/// The value that the next word or argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Nothing,
    /// `user:secret`.
    Login,
    Value(Certainty),
    /// A value behind an option without `=`: another option cannot be it.
    SeparateValue(Certainty),
}

/// Returns the arguments with every value that looks like a secret replaced by [`REDACTED`].
pub fn redact<S: AsRef<str>>(argv: &[S]) -> Vec<String> {
    let mut scanner = Scanner { expected: Expected::Nothing, options: "", is_code: false, sets_value: false };
    argv.iter().map(|argument| scanner.argument(argument.as_ref())).collect()
}

/// The state between arguments.
struct Scanner {
    expected: Expected,
    /// The letters of [`PROGRAMS`] for the last program.
    options: &'static str,
    /// The next argument is code (`sh -c CODE`), in which a value ends at a space.
    is_code: bool,
    /// One of [`SETTERS`] precedes.
    sets_value: bool,
}

impl Scanner {
    fn argument(&mut self, text: &str) -> String {
        let bytes = text.as_bytes();
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(b' ');
        let slice = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
        let is_code = std::mem::take(&mut self.is_code);
        let mut out = String::new();
        // Everything before this position is in `out`.
        let mut copied = 0;
        let mut at = 0;
        // The first delimiter behind the last value.
        let mut delimiter = 0;
        // Whether a value that begins here extends to the end of the argument, or to this quotation mark.
        let mut is_whole = true;
        let mut enclosing = 0;
        // No operator, quotation mark or bracket precedes.
        let mut is_first = !is_code;
        while at < bytes.len() {
            let first = byte_at(at);
            if self.expected != Expected::Nothing && first > b' ' {
                let expected = std::mem::replace(&mut self.expected, Expected::Nothing);
                let (from, end) = value_range(bytes, at, is_whole, enclosing, &mut delimiter);
                let value = slice(from, end);
                if expected != Expected::Login && is_one_of(value, SCHEMES) {
                    self.expected = Expected::SeparateValue(Certainty::High);
                    is_whole = false;
                    at = end;
                    continue;
                }
                if let Some(offset) = self.secret_in(expected, value) {
                    out.push_str(slice(copied, from + offset));
                    out.push_str(REDACTED);
                    (copied, at, is_first) = (end, end.max(at + 1), false);
                    continue;
                }
                if first == b'-' && expected == Expected::SeparateValue(Certainty::Low) {
                    self.expected = expected;
                }
            }
            let start = at;
            while is_word(byte_at(at)) {
                at += 1;
            }
            let rest = slice(start, bytes.len());
            if at == start {
                if let Some(url) = rest.strip_prefix("://") {
                    at += 3;
                    let authority = url.split(['/', ' ', '"', '\'', '\n']).next().unwrap_or_default();
                    if let Some(length) = authority.rfind('@')
                        && !slice(0, start).ends_with("ssh")
                    {
                        let user = authority.find(':').filter(|colon| *colon < length).map_or(0, |colon| colon + 1);
                        out.push_str(slice(copied, at + user));
                        out.push_str(REDACTED);
                        copied = at + length;
                        at = copied;
                    }
                    is_first = false;
                } else {
                    is_first &= matches!(first, b'/' | b'+' | b'@');
                    at += 1;
                }
                continue;
            }
            let word = slice(start, at);
            // A scan of a long text must be quick, so the conditions that rarely hold come first.
            let secret = if byte_at(at) == b'/'
                && let Some(url) = SECRET_URLS.split(' ').find(|url| rest.starts_with(url))
            {
                let path = rest.split([' ', '"', '\'', '\n']).next().unwrap_or_default();
                Some((start + url.len(), start + path.len()))
            } else if word.len() > 16 && byte_at(at) != b'=' && has_token_prefix(word) {
                Some((start, at))
            } else if word.starts_with("KEY-----") {
                // `-----BEGIN PRIVATE KEY-----`
                Some((at, bytes.len()))
            } else {
                None
            };
            if let Some((from, end)) = secret {
                out.push_str(slice(copied, from));
                out.push_str(REDACTED);
                (copied, at) = (end, end);
                continue;
            }
            let before = if start == 0 { b' ' } else { byte_at(start - 1) };
            let is_end = byte_at(at) <= b' ';
            let is_option = first == b'-';
            let letter = byte_at(start + 1);
            if is_option
                && letter.is_ascii_alphabetic()
                && let Some((_, after)) = self.options.split_once(char::from(letter))
            {
                let is_separate = at == start + 2 && is_end;
                if !is_separate || !after.starts_with('!') {
                    self.expected = match letter {
                        b'u' | b'U' => Expected::Login,
                        _ if is_separate => Expected::SeparateValue(Certainty::Password),
                        _ => Expected::Value(Certainty::Password),
                    };
                    is_whole = !is_separate && start == 0 && !is_code;
                    enclosing = 0;
                    at = start + 2;
                    continue;
                }
            }
            if start == 0 && at == bytes.len() && is_option && word.len() <= 4 && letter != b'-' {
                self.is_code = word.ends_with('c');
            }
            let is_slash_option = before == b'/' && start == 1;
            let mut operator = at;
            while matches!(byte_at(operator), b'"' | b'\'' | b']' | b'\\') {
                operator += 1;
            }
            let is_closed = operator > at;
            while operator < bytes.len() && byte_at(operator) == b' ' {
                operator += 1;
            }
            let follows = byte_at(operator + 1);
            let is_assignment = match byte_at(operator) {
                b'=' => follows != b'=',
                b':' => !matches!(follows, b'/' | b':') && (before != b'/' || is_slash_option),
                b'>' => before == b'<',
                // `setdefault("TOKEN", "...")`
                b',' => is_closed && start > 1 && byte_at(start - 2) == b'(',
                _ => false,
            };
            let is_quote = matches!(byte_at(operator), b'"' | b'\'');
            let is_login = is_option && is_one_of(word, LOGIN_OPTIONS);
            let certainty = if is_slash_option && word == "p" {
                Certainty::Password
            } else if is_assignment || is_end && (is_option || self.sets_value || is_quote) {
                certainty(word)
            } else {
                Certainty::No
            };
            if is_assignment && (is_login || certainty > Certainty::No) {
                self.expected = if is_login { Expected::Login } else { Expected::Value(certainty) };
                let is_in_quotes = matches!(before, b'"' | b'\'') && !is_closed && byte_at(operator) == b':';
                enclosing = if is_in_quotes { before } else { 0 };
                is_whole = is_first && !is_in_quotes;
                is_first = false;
                at = operator + 1 + usize::from(matches!(follows, b'=' | b'>'));
                // `TOKEN= program` is an empty value.
                if at >= bytes.len() && byte_at(operator) == b'=' {
                    self.expected = Expected::Nothing;
                }
                continue;
            }
            if is_end {
                let names_value = certainty > Certainty::No && (is_option || self.sets_value)
                    // `ALTER USER x PASSWORD '...'`
                    || certainty > Certainty::Medium && is_quote;
                let by = slice(operator, operator + 3).eq_ignore_ascii_case("by ");
                if is_login {
                    self.expected = Expected::Login;
                } else if names_value {
                    self.expected = Expected::SeparateValue(certainty);
                } else if is_one_of(word, BEFORE_SECRET) {
                    self.expected = Expected::SeparateValue(Certainty::Password);
                } else if by && word.eq_ignore_ascii_case("identified") {
                    // `IDENTIFIED BY '...'`
                    self.expected = Expected::Value(Certainty::Password);
                    at = operator + 2;
                } else if word == "login" {
                    // `wandb login KEY`
                    self.expected = Expected::SeparateValue(Certainty::Low);
                }
                (is_whole, enclosing) = (false, 0);
                if !is_option {
                    self.sets_value = is_one_of(word, SETTERS);
                    if matches!(before, b' ' | b'\n' | b'/' | b'"' | b'\'' | b';' | b'|' | b'&' | b'(')
                        && let Some(options) = options_of(word)
                    {
                        self.options = options;
                    }
                }
            }
        }
        out.push_str(slice(copied, bytes.len()));
        out
    }

    /// Returns where the secret begins in an expected value.
    fn secret_in(&self, expected: Expected, value: &str) -> Option<usize> {
        match expected {
            Expected::Nothing => None,
            Expected::Value(certainty) => is_secret(certainty, value).then_some(0),
            Expected::SeparateValue(certainty) => (!value.starts_with('-') && is_secret(certainty, value)).then_some(0),
            Expected::Login => {
                // In other programs than curl these options have other meanings: two numbers are a user and a group,
                // and `+%H:%M` is a format.
                let is_known = self.options.contains(['u', 'U']);
                // No user name is longer.
                let mut user = value.bytes().take(256);
                let colon = user.position(|byte| byte == b':' || is_known && matches!(byte, b'%' | b','))?;
                let secret = value.get(colon + 1..).unwrap_or_default();
                let is_other = is_number(secret) || secret.starts_with("//") || value.starts_with('+');
                (!secret.is_empty() && (is_known || !is_other)).then_some(colon + 1)
            }
        }
    }
}

/// Returns the begin and the end of the value at `at`, without quotation marks. `delimiter` keeps the end of a value
/// without them, so that a text with many names and one long value is not searched for each name.
fn value_range(bytes: &[u8], at: usize, is_whole: bool, enclosing: u8, delimiter: &mut usize) -> (usize, usize) {
    let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
    if is_whole {
        return (at, bytes.len());
    }
    // `\"` in a quotation.
    let is_escaped = byte_at(at) == b'\\';
    let opening = at + usize::from(is_escaped);
    let is_quoted = enclosing == 0 && matches!(byte_at(opening), b'"' | b'\'');
    let (from, quote) = if is_quoted { (opening + 1, byte_at(opening)) } else { (at, enclosing) };
    if quote == 0 {
        let is_end = |byte: u8| byte <= b' ' || b",;&|)}]<>\"'`".contains(&byte);
        *delimiter = at.max(*delimiter);
        while *delimiter < bytes.len() && !is_end(byte_at(*delimiter)) {
            *delimiter += 1;
        }
        return (at, *delimiter);
    }
    let mut end = from;
    while end < bytes.len() && (byte_at(end) != quote || !is_escaped && byte_at(end.wrapping_sub(1)) == b'\\') {
        end += 1;
    }
    (from, end - usize::from(is_quoted && is_escaped && end > from))
}

fn has_token_prefix(word: &str) -> bool {
    TOKEN_PREFIXES.split(' ').any(|prefix| word.starts_with(prefix) && word.len() >= prefix.len() + 16)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

fn is_one_of(word: &str, words: &str) -> bool {
    words.split(' ').any(|one| one.eq_ignore_ascii_case(word))
}

/// Returns the letters of a program in [`PROGRAMS`].
fn options_of(program: &str) -> Option<&'static str> {
    PROGRAMS.split(' ').find_map(|entry| {
        let (name, options) = entry.split_once(':')?;
        let is_match = match name.strip_suffix('*') {
            Some(prefix) => program.starts_with(prefix) && !program.contains('.'),
            None => program == name,
        };
        is_match.then_some(options)
    })
}

/// Returns how certain the name before a value is to name a secret.
fn certainty(word: &str) -> Certainty {
    // The shell sets `PWD`, the current directory.
    if word == "PWD" {
        return Certainty::No;
    }
    let name = word.rsplit('.').next().unwrap_or_default();
    let name = name.trim_end_matches(|end: char| !end.is_ascii_alphabetic());
    let squashed: String = name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| char::from(byte | 0x20)).collect();
    let last = name.rsplit(['_', '-']).next().unwrap_or_default();
    let is_upper = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    // Each text of `SECRET_ENDS` contains one of these; most names contain none of them.
    let may_be_secret = squashed
        .as_bytes()
        .windows(3)
        .any(|part| matches!(part, b"pas" | b"cre" | b"tok" | b"key" | b"gna" | b"ook" | b"nne" | b"bea" | b"aut"));
    if !may_be_secret && !is_one_of(last, SECRET_LAST_WORDS) {
        return Certainty::No;
    }
    let has = |part: &str| squashed.contains(part);
    if SECRET_ENDS.split(' ').any(|end| squashed.ends_with(end))
        || is_one_of(last, SECRET_LAST_WORDS)
        || squashed == "key"
        || is_upper && last == "KEY"
    {
        return if has("pass") || has("pwd") || has("secret") { Certainty::Password } else { Certainty::High };
    }
    let is_vocabulary = has("tokens") || has("tokeni");
    let is_possible = squashed.ends_with("key") || !is_vocabulary && SECRET_ENDS.split(' ').any(has);
    let is_password = (has("pass") || has("secret")) && !is_one_of(last, HARMLESS_LAST_WORDS);
    match is_possible {
        false => Certainty::No,
        true if is_upper || is_password => Certainty::Medium,
        true => Certainty::Low,
    }
}

/// Whether the value behind a name is a secret.
fn is_secret(certainty: Certainty, value: &str) -> bool {
    if value.is_empty() || is_one_of(value, PLAIN_VALUES) {
        return false;
    }
    match certainty {
        Certainty::No => false,
        Certainty::Low => is_random(value),
        Certainty::Medium => !is_number(value) && !value.starts_with(['/', '.', '~']),
        // `<pad>` and `[MASK]` belong to a vocabulary.
        Certainty::High => {
            !(is_number(value) || value.starts_with('<') || value.starts_with('[') && value.ends_with(']'))
        }
        // `docker run --name mongo -p 27017:27017`
        Certainty::Password => !value.contains(':') || !value.bytes().all(is_of_number),
    }
}

fn is_number(value: &str) -> bool {
    value.len() < 8 && value.bytes().all(is_of_number)
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b',' | b':')
}

/// Whether a value looks like a generated key: letters and digits, or a UUID.
fn is_random(value: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    value.len() >= 16
        && (value.bytes().all(|byte| byte.is_ascii_alphanumeric()) || value.bytes().all(is_hex))
        && value.bytes().filter(u8::is_ascii_digit).count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments are separated by `␣`.
    fn line(text: &str) -> String {
        redact(&text.split('␣').collect::<Vec<_>>()).join("␣")
    }

    /// Command lines and what is shown of them. Real secrets are longer than most of these, and some have a known prefix.
    const SECRETS: &[(&str, &str)] = &[
        // Options and variables of programs for machine learning.
        ("run␣--token=abc", "run␣--token=***"),
        ("run␣--hf-token␣abc␣x", "run␣--hf-token␣***␣x"),
        ("run␣-password␣abc", "run␣-password␣***"),
        ("run␣--password=correct horse, staple", "run␣--password=***"),
        ("run␣--pass=-abc", "run␣--pass=***"),
        ("WANDB_API_KEY=abc␣python", "WANDB_API_KEY=***␣python"),
        ("env␣AWS_SECRET_ACCESS_KEY=a=b", "env␣AWS_SECRET_ACCESS_KEY=***"),
        ("DB_PASS=abc␣MYSQL_PWD=abc␣GITLAB_PAT=abc", "DB_PASS=***␣MYSQL_PWD=***␣GITLAB_PAT=***"),
        ("HF_TOKEN_READ=abc␣API_KEY_2=abc␣OPENAI_KEY=abc", "HF_TOKEN_READ=***␣API_KEY_2=***␣OPENAI_KEY=***"),
        ("train␣--trainer.wandb.api_key=x␣+wandb.token=x", "train␣--trainer.wandb.api_key=***␣+wandb.token=***"),
        ("train␣--wandb-key␣abc", "train␣--wandb-key␣***"),
        ("train␣--comet_key␣f3a9c4d2e1b0a7968574", "train␣--comet_key␣***"),
        ("wandb␣login␣--relogin␣0123456789abcdef0123456789abcdef01234567", "wandb␣login␣--relogin␣***"),
        ("huggingface-cli␣login␣--token␣abc", "huggingface-cli␣login␣--token␣***"),
        ("vllm␣serve␣m␣--api-key␣abc", "vllm␣serve␣m␣--api-key␣***"),
        ("ray␣start␣--redis-password=abc", "ray␣start␣--redis-password=***"),
        ("jupyter␣lab␣--NotebookApp.token=abc", "jupyter␣lab␣--NotebookApp.token=***"),
        ("jupyter␣lab␣--ServerApp.password␣argon2:$a$b", "jupyter␣lab␣--ServerApp.password␣***"),
        ("run␣--db-password-old␣abc␣--secret-id=abc", "run␣--db-password-old␣***␣--secret-id=***"),
        ("gradio␣--auth␣alice:abc", "gradio␣--auth␣***"),
        ("hf_abcdefghijklmnopqrstuv", "***"),
        ("--env=sk-abcdefghijklmnopqrstuv", "--env=***"),
        ("--endpoint=nvapi-abcdefghijklmnopqrst", "--endpoint=***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
        ("python␣-c␣login(\"hf_abcdefghijklmnopqrstuv\")", "python␣-c␣login(\"***\")"),
        ("python␣-c␣os.environ['API_KEY'] = 'abc'; run()", "python␣-c␣os.environ['API_KEY'] = '***'; run()"),
        ("python␣-c␣os.environ[\"HF_TOKEN\"]=\"a b\";run()", "python␣-c␣os.environ[\"HF_TOKEN\"]=\"***\";run()"),
        (
            "python␣-c␣os.environ.setdefault(\"A_TOKEN\", \"abc\")",
            "python␣-c␣os.environ.setdefault(\"A_TOKEN\", \"***\")",
        ),
        ("python␣-c␣wandb.login(key='abc', x=1)", "python␣-c␣wandb.login(key='***', x=1)"),
        ("python␣-c␣c = Client(x, api_key=\"abc\")", "python␣-c␣c = Client(x, api_key=\"***\")"),
        ("python␣-c␣h = {'Authorization': 'Bearer abc'}", "python␣-c␣h = {'Authorization': '***'}"),
        // Schedulers, containers and cluster tools.
        ("srun␣--export=ALL,HF_TOKEN=abc,X=1", "srun␣--export=ALL,HF_TOKEN=***,X=1"),
        ("sbatch␣--export=WANDB_API_KEY=abc␣job.sh", "sbatch␣--export=WANDB_API_KEY=***␣job.sh"),
        ("mpirun␣-x␣HF_TOKEN=abc␣python", "mpirun␣-x␣HF_TOKEN=***␣python"),
        ("docker␣login␣-u␣alice␣-p␣abc␣registry.lab", "docker␣login␣-u␣alice␣-p␣***␣registry.lab"),
        ("docker␣run␣-e␣API_KEY=abc␣-eTOKEN=abc␣image", "docker␣run␣-e␣API_KEY=***␣-eTOKEN=***␣image"),
        ("docker␣build␣--build-arg␣TOKEN=abc␣.", "docker␣build␣--build-arg␣TOKEN=***␣."),
        ("podman␣run␣--env=DB_PASSWORD=abc␣image", "podman␣run␣--env=DB_PASSWORD=***␣image"),
        ("kubectl␣--token␣abc␣get␣pods", "kubectl␣--token␣***␣get␣pods"),
        (
            "kubectl␣create␣secret␣generic␣x␣--from-literal=password=abc",
            "kubectl␣create␣secret␣generic␣x␣--from-literal=password=***",
        ),
        ("helm␣install␣--set␣auth.password=abc␣--password␣abc", "helm␣install␣--set␣auth.password=***␣--password␣***"),
        ("ansible␣all␣-e␣ansible_become_pass=abc", "ansible␣all␣-e␣ansible_become_pass=***"),
        ("vault␣login␣hvs.CAESIJabcdefghijklmnop", "vault␣login␣***"),
        ("vault␣kv␣put␣secret/x␣password=abc", "vault␣kv␣put␣secret/x␣password=***"),
        ("az␣login␣--service-principal␣-u␣id␣-p␣abc", "az␣login␣--service-principal␣-u␣id␣-p␣***"),
        ("az␣storage␣--account-key␣abc␣--sas-token␣abc", "az␣storage␣--account-key␣***␣--sas-token␣***"),
        ("aws␣configure␣set␣aws_secret_access_key␣abc", "aws␣configure␣set␣aws_secret_access_key␣***"),
        ("tailscale␣up␣--authkey␣abc", "tailscale␣up␣--authkey␣***"),
        ("ngrok␣config␣add-authtoken␣abc", "ngrok␣config␣add-authtoken␣***"),
        ("spark-submit␣--conf␣spark.fs.s3a.secret.key=abc", "spark-submit␣--conf␣spark.fs.s3a.secret.key=***"),
        ("java␣-Djavax.net.ssl.keyStorePassword=abc␣-jar␣x", "java␣-Djavax.net.ssl.keyStorePassword=***␣-jar␣x"),
        ("keytool␣-storepass␣abc␣-keypass␣abc", "keytool␣-storepass␣***␣-keypass␣***"),
        // Databases and directories.
        ("mysql␣-u␣root␣-pabc␣db", "mysql␣-u␣root␣-p***␣db"),
        ("sh␣-c␣/usr/bin/mysqldump -uroot -p'a b' db", "sh␣-c␣/usr/bin/mysqldump -uroot -p'***' db"),
        ("mysqldump␣--password=abc␣db", "mysqldump␣--password=***␣db"),
        ("mysql␣-e␣CREATE USER a IDENTIFIED BY 'abc'", "mysql␣-e␣CREATE USER a IDENTIFIED BY '***'"),
        ("psql␣-c␣ALTER USER a PASSWORD 'abc'", "psql␣-c␣ALTER USER a PASSWORD '***'"),
        ("psql␣postgresql://alice:a#b@host:5432/db", "psql␣postgresql://alice:***@host:5432/db"),
        ("psql␣host=h user=a password=abc", "psql␣host=h user=a password=***"),
        ("PGPASSWORD=abc␣psql", "PGPASSWORD=***␣psql"),
        ("redis-cli␣-h␣host␣-a␣abc␣ping", "redis-cli␣-h␣host␣-a␣***␣ping"),
        ("redis-server␣--requirepass␣abc", "redis-server␣--requirepass␣***"),
        ("redis://:pw@host:6379", "redis://:***@host:6379"),
        ("mongosh␣-u␣alice␣-p␣abc", "mongosh␣-u␣alice␣-p␣***"),
        ("mongosh␣mongodb+srv://alice:abc@h1,h2/db?x=1", "mongosh␣mongodb+srv://alice:***@h1,h2/db?x=1"),
        ("sqlcmd␣-S␣host␣-U␣sa␣-P␣abc", "sqlcmd␣-S␣host␣-U␣sa␣-P␣***"),
        ("cqlsh␣-u␣alice␣-p␣abc", "cqlsh␣-u␣alice␣-p␣***"),
        ("app␣Server=h;Password=abc;Database=d", "app␣Server=h;Password=***;Database=d"),
        ("ldapsearch␣-D␣cn=admin␣-w␣abc", "ldapsearch␣-D␣cn=admin␣-w␣***"),
        ("ldapmodify␣-wabc", "ldapmodify␣-w***"),
        // Transfer.
        ("curl␣-H␣Authorization: Bearer abc", "curl␣-H␣Authorization: ***"),
        ("curl␣-H␣X-Api-Key:abc", "curl␣-H␣X-Api-Key:***"),
        ("curl␣--oauth2-bearer␣abc", "curl␣--oauth2-bearer␣***"),
        ("curl␣-u␣alice:abc␣https://host", "curl␣-u␣alice:***␣https://host"),
        ("curl␣-ualice:1234␣https://host", "curl␣-ualice:***␣https://host"),
        ("curl␣--user=alice:abc", "curl␣--user=alice:***"),
        ("curl␣-d␣user=a&password=abc&x=1", "curl␣-d␣user=a&password=***&x=1"),
        ("curl␣-d␣{\"user\": \"a\", \"password\": \"abc\"}", "curl␣-d␣{\"user\": \"a\", \"password\": \"***\"}"),
        ("curl␣-b␣x␣Cookie: sid=abc; b=c", "curl␣-b␣x␣Cookie: ***"),
        ("curl␣-d␣<a>x</a><password>abc</password>", "curl␣-d␣<a>x</a><password>***</password>"),
        ("wget␣--header=Authorization: token abc", "wget␣--header=Authorization: token ***"),
        ("wget␣--http-password=abc␣ftp://bob:abc@host/x", "wget␣--http-password=***␣ftp://bob:***@host/x"),
        ("aria2c␣--rpc-secret=abc␣--http-passwd=abc", "aria2c␣--rpc-secret=***␣--http-passwd=***"),
        ("smbclient␣//host/share␣-U␣alice%abc", "smbclient␣//host/share␣-U␣alice%***"),
        ("lftp␣-u␣alice,abc␣host", "lftp␣-u␣alice,***␣host"),
        ("mount␣-o␣username=a,password=abc,vers=3", "mount␣-o␣username=a,password=***,vers=3"),
        ("sshpass␣-p␣abc␣ssh␣-p␣22␣host", "sshpass␣-p␣***␣ssh␣-p␣22␣host"),
        ("/usr/bin/sshpass␣-p12@34␣scp␣-P␣22␣a␣host:", "/usr/bin/sshpass␣-p***␣scp␣-P␣22␣a␣host:"),
        ("ssh-keygen␣-t␣ed25519␣-N␣abc", "ssh-keygen␣-t␣ed25519␣-N␣***"),
        ("openssl␣rsa␣-passin␣pass:abc", "openssl␣rsa␣-passin␣pass:***"),
        ("gpg␣--batch␣--passphrase␣abc", "gpg␣--batch␣--passphrase␣***"),
        ("BORG_PASSPHRASE=abc␣borg␣create", "BORG_PASSPHRASE=***␣borg␣create"),
        ("rclone␣obscure␣abc", "rclone␣obscure␣***"),
        ("rclone␣copy␣--sftp-pass␣abc", "rclone␣copy␣--sftp-pass␣***"),
        ("zip␣-P␣abc␣x.zip", "zip␣-P␣***␣x.zip"),
        ("7z␣a␣-pabc␣x.7z", "7z␣a␣-p***␣x.7z"),
        ("ipmitool␣-H␣bmc␣-U␣root␣-P␣abc", "ipmitool␣-H␣bmc␣-U␣root␣-P␣***"),
        ("mosquitto_pub␣-u␣a␣-P␣abc", "mosquitto_pub␣-u␣a␣-P␣***"),
        ("xfreerdp␣/u:a␣/p:abc", "xfreerdp␣/u:a␣/p:***"),
        // Packages and repositories.
        ("pip␣--index-url␣https://bob:abc@host/simple", "pip␣--index-url␣https://bob:***@host/simple"),
        ("git␣clone␣https://abc@github.com/x", "git␣clone␣https://***@github.com/x"),
        ("git␣-c␣http.extraheader=Authorization: Basic abc", "git␣-c␣http.extraheader=Authorization: Basic ***"),
        ("npm␣set␣//host/:_authToken␣abc", "npm␣set␣//host/:_authToken␣***"),
        ("twine␣upload␣-u␣__token__␣-p␣abc", "twine␣upload␣-u␣__token__␣-p␣***"),
        // Shells and texts.
        ("sh␣-c␣export TOKEN=abc; run --password abc x", "sh␣-c␣export TOKEN=***; run --password *** x"),
        ("sh␣-c␣TOKEN=abc python train.py", "sh␣-c␣TOKEN=*** python train.py"),
        ("bash␣-lc␣export FOO_KEY=\"a b\" && run", "bash␣-lc␣export FOO_KEY=\"***\" && run"),
        ("sh␣-c␣run --password 'a b c' x", "sh␣-c␣run --password '***' x"),
        ("sh␣-c␣curl -H 'Authorization: Bearer abc' url", "sh␣-c␣curl -H 'Authorization: ***' url"),
        ("sh␣-c␣curl -H Authorization: Bearer abc url", "sh␣-c␣curl -H Authorization: Bearer *** url"),
        ("sh␣-c␣curl -H 'Cookie: a=b; c=d' url", "sh␣-c␣curl -H 'Cookie: ***' url"),
        ("sh␣-c␣run \"{\\\"api_key\\\": \\\"abc\\\"}\"", "sh␣-c␣run \"{\\\"api_key\\\": \\\"***\\\"}\""),
        ("csh␣-c␣setenv TOKEN abc", "csh␣-c␣setenv TOKEN ***"),
        ("tmux␣set-environment␣-g␣TOKEN␣abc", "tmux␣set-environment␣-g␣TOKEN␣***"),
        ("python train.py --token abc --lr 1", "python train.py --token *** --lr 1"),
        ("--config={\"api_key\":\"abc\",\"lr\":1}", "--config={\"api_key\":\"***\",\"lr\":1}"),
        ("{\"lr\": 1, \"api_key\": \"abc\", \"x\": 2}", "{\"lr\": 1, \"api_key\": \"***\", \"x\": 2}"),
        ("https://host/x?a=1&api_key=abc&b=2", "https://host/x?a=1&api_key=***&b=2"),
        ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/***"),
        ("https://api.telegram.org/bot1:abc/send x", "https://api.telegram.org/bot*** x"),
        ("https://s3/x?X-Amz-Signature=abc&X-Amz-Date=1", "https://s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://blob/x?sv=2&sig=abc", "https://blob/x?sv=2&sig=***"),
        ("echo␣-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "echo␣-----BEGIN OPENSSH PRIVATE KEY-----***"),
    ];

    const NO_SECRETS: &[&str] = &[
        "python␣train.py␣--max-tokens=4096␣--tokenizer␣llama",
        "python␣train.py␣--tokenizer␣mistral7binstructv03abcdef",
        "--max_token_len=5␣--max_token=4096␣--num-token-drop=2",
        "--pad-token␣0␣--eos_token=</s>␣--mask-token␣[MASK]␣--bos-token␣<s>",
        "TOKENIZERS_PARALLELISM=false␣VLLM_MAX_NUM_TOKENS=8192",
        "--keys=4␣--key-frames␣8␣--num_key_value_heads␣8␣--keyframe␣a",
        "--sort_key=name␣--image-key␣jpg␣--label_key␣observation.images",
        "--password-file␣/run/secrets/x␣--token-file␣x.txt␣--api-key-file=x",
        "--passphrase-fd␣0␣--password-stdin␣--secret-name␣x",
        "RESTIC_PASSWORD_FILE=/run/x␣CREDENTIALS_DIRECTORY=/run/y",
        "SSH_AUTH_SOCK=/tmp/agent␣GIT_ASKPASS=/usr/bin/ask␣PASSWORD_MIN_LENGTH=8",
        "PWD=/home/alice␣OLDPWD=/",
        "--use_auth_token␣true␣--use_auth_token=True␣--token␣None",
        "torchrun␣--nproc_per_node␣8␣--rdzv_endpoint=host:29400",
        "http://host:8000/v1?x=1␣https://host/a@b␣git@github.com:org/x.git",
        "ssh://alice@host/x␣git+ssh://git@github.com/x␣alice@host:/data",
        "--token=␣--verbose",
        "--password␣--verbose",
        "C:\\x␣a:b␣12:30␣::1",
        "monkey=1␣hotkey␣x",
        "/data/secrets/x.bin␣/opt/token:/usr/bin",
        "sk-short␣hf_transfer␣npm_config_cache_directory=/x",
        "python␣-u␣train.py␣-m␣lab.tokens",
        "docker␣run␣--user␣1000:1000␣-p␣8080:80␣image",
        "docker␣run␣--name␣mongo␣-p␣27017:27017␣mongo",
        "docker␣run␣--name␣mysql␣-p127.0.0.1:3306:3306␣mysql",
        "relax␣--cutoff_pw␣40␣-pw␣8",
        "docker␣run␣-v␣/secret:/secret:ro␣-e␣NCCL_DEBUG=INFO␣image",
        "docker␣ps␣-a␣--filter␣name=x",
        "ssh␣-p␣22␣-o␣PasswordAuthentication=no␣host",
        "ssh␣-o␣PreferredAuthentications=password␣host",
        "serve␣-p␣8080␣-a␣0.0.0.0␣-w␣4␣-P␣x␣-k␣y",
        "mysql␣-p␣db␣-P␣3306␣-h␣host",
        "psql␣-p␣5432␣-U␣alice␣-W␣db",
        "pg_dump␣-U␣alice␣-p␣5432",
        "redis-cli␣-p␣6379␣ping",
        "ls␣-a␣-p␣-w␣80",
        "mkdir␣-p␣/data/x",
        "nvidia-smi␣--query-gpu=index␣-u␣x",
        "openssl␣rsa␣-passin␣env:VAR␣-passout␣file:x␣-keyout␣k.pem",
        "cryptsetup␣--key-file␣/root/key",
        "gcloud␣auth␣activate-service-account␣--key-file=x.json",
        "git␣config␣credential.helper␣store",
        "git␣commit␣-m␣add the token of the parser",
        "git␣checkout␣0123456789abcdef0123456789abcdef01234567",
        "grep␣-r␣password␣src␣-n",
        "vim␣secret.py␣token.txt",
        "docker␣login␣registry.lab.example.com",
        "date␣-u␣+%H:%M:%S",
        "sort␣--key␣2␣-k␣2,2",
        "python␣-c␣import torch; print(torch.cuda.is_available())",
        "python␣-c␣x = sorted(d, key=lambda a: a[1]); y = {'lr': 1}",
        "python␣-c␣tokens = tok(x)['input_ids']; n = len(tokens)",
        "python␣-c␣if token == 'x': print(1)",
        "python␣-m␣vllm.entrypoints.openai.api_server␣--port␣8000",
        "sh␣-c␣cd /x && python train.py --lr 1 | tee log",
        "ray::PPOActor.generate_tokens",
        "tmux: server",
        "nginx: worker process",
        "postgres: alice db 10.0.0.7(5432) idle",
        "sshd: alice [priv]",
        "slurmstepd: [1234.batch]",
        "--signature-def␣serving_default␣--cookies-from-browser␣firefox",
        "--auth-type␣kerberos␣--credential-process␣x",
        "--compat=1␣--path=/x␣--author=alice␣--authority␣x",
        "yt-dlp␣--cookies␣c.txt␣--keep-video",
        "redis-server␣*:6379",
        "Epoch 1: loss=0.1 tokens/s: 4096 token: 17",
        "größe=5␣--näme␣x␣„token“",
        "",
    ];

    #[test]
    fn secrets_are_redacted() {
        assert!(SECRETS.len() >= 60, "{}", SECRETS.len());
        let wrong: Vec<String> = SECRETS
            .iter()
            .filter(|(given, redacted)| line(given) != *redacted)
            .map(|(given, redacted)| format!("{given}\n  is      {}\n  must be {redacted}", line(given)))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_end_of_a_name_is_recognised() {
        for end in SECRET_ENDS.split(' ').chain(SECRET_LAST_WORDS.split(' ')) {
            assert!(certainty(&format!("--my-{end}")) >= Certainty::High, "{end}");
        }
    }

    #[test]
    fn the_time_for_a_hostile_text_grows_with_its_length() {
        // Quadratic time would take a minute for each.
        for part in ["tokenx=", "a ", "://", "--token ", "token'", "key: x", "--user=", "tokenx=\\'", "'tokenx: "] {
            let begin = std::time::Instant::now();
            redact(&[part.repeat(20_000)]);
            assert!(begin.elapsed().as_secs() < 20, "{part} took {:?}", begin.elapsed());
        }
    }

    #[test]
    fn ordinary_arguments_are_unchanged() {
        assert!(NO_SECRETS.len() >= 60, "{}", NO_SECRETS.len());
        let wrong: Vec<String> = NO_SECRETS
            .iter()
            .filter(|given| line(given) != **given)
            .map(|given| format!("{given}\n  is {}", line(given)))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn cut_and_foreign_text_is_scanned_to_its_end() {
        for (given, _) in SECRETS {
            for (position, _) in given.char_indices().step_by(3) {
                let (head, tail) = given.split_at(position);
                // The end of a text is cut off if it is too long.
                line(head);
                for foreign in ["ä", "\\", "\"", "://", "="] {
                    let text = format!("{head}{foreign}{tail}");
                    let count = text.matches('␣').count();
                    assert_eq!(line(&text).matches('␣').count(), count, "{text}");
                }
            }
        }
    }
}
