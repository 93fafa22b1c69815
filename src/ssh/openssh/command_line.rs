//! The command line of the `ssh` program.
//!
//! For a jump host `ssh` starts another `ssh`, which reads the ssh configuration but inherits no `-o` option. With
//! `StrictHostKeyChecking no` it would accept a changed key. So each jump host is a `ProxyCommand` here, with options for
//! that jump host; the `ssh` of a `ProxyCommand` in the configuration follows the configuration.

use crate::config::{Hop, HostConfig};
use crate::ssh::Context;
use crate::ssh::resolve::{
    Proxy, Resolved, StrictHostKeys, last_jump_host, name_jump_host, refuse_circle, resolve, route_key,
};
use crate::ssh::transport::SshError;
use futures::future::BoxFuture;
use std::path::Path;

/// `accept-new` in place of `no`: a changed key is refused, an unknown one is accepted as configured.
const REFUSE_CHANGED_KEYS: &str = "StrictHostKeyChecking=accept-new";

/// The purpose of an `ssh` process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A command without a terminal.
    Command,
    /// A shell in the user's terminal.
    Shell,
}

/// The arguments of an `ssh` without a terminal, except the host: the values of hosts.toml, and the settings that a
/// transport needs.
///
/// # Errors
/// The configuration of a jump host cannot be used.
pub(in crate::ssh) async fn arguments(
    context: &Context,
    host: &HostConfig,
    resolved: &Resolved,
) -> Result<Vec<String>, SshError> {
    let mut arguments = command_arguments(context, host, resolved);
    arguments.extend(proxy_options(context, host, resolved, Purpose::Command, &[]).await?);
    Ok(arguments)
}

/// The arguments of an `ssh` that opens a shell on `host` in the user's terminal. It asks there, and follows the ssh
/// configuration, except that it refuses changed host keys.
///
/// # Errors
/// The configuration of the host or of a jump host cannot be used.
pub async fn shell_arguments(context: &Context, host: &HostConfig) -> Result<Vec<String>, SshError> {
    let resolved = resolve(context, host).await?;
    let proxy = proxy_options(context, host, &resolved, Purpose::Shell, &[]).await?;
    Ok(shell_options(host, &resolved, proxy))
}

/// The options of an `ssh` in the user's terminal, with the host. It does not allow `-J` beside a `ProxyCommand`.
fn shell_options(host: &HostConfig, resolved: &Resolved, proxy: Vec<String>) -> Vec<String> {
    let accepts_changed_keys = resolved.strict_host_keys == StrictHostKeys::Off;
    let strict = accepts_changed_keys.then(|| ["-o".to_owned(), REFUSE_CHANGED_KEYS.to_owned()]);
    let login = HostConfig { proxy_jump: None, ..host.clone() }.login_arguments();
    strict.into_iter().flatten().chain(proxy).chain(login).collect()
}

fn command_arguments(context: &Context, host: &HostConfig, resolved: &Resolved) -> Vec<String> {
    let mut arguments: Vec<String> = ["-T", "-a", "-x"].map(str::to_owned).into();
    if let Some(config) = context.config_file(host) {
        arguments.extend(["-F".to_owned(), config.display().to_string()]);
    }
    let mut option = |option: String| arguments.extend(["-o".to_owned(), option]);
    if !context.askpass.can_prompt() {
        option("BatchMode=yes".to_owned());
    }
    for fixed in ["ClearAllForwardings=yes", "PermitLocalCommand=no", "Compression=no"] {
        option(fixed.to_owned());
    }
    let (interval, count) = resolved.server_alive();
    option(format!("ServerAliveInterval={}", interval.as_secs().max(1)));
    option(format!("ServerAliveCountMax={count}"));
    for overridden in &resolved.option_overrides {
        option((*overridden).to_owned());
    }
    if resolved.strict_host_keys == StrictHostKeys::Off {
        option(REFUSE_CHANGED_KEYS.to_owned());
    }
    if resolved.connect_timeout.is_none() {
        option(format!("ConnectTimeout={}", context.options.limits.tcp.as_secs().max(1)));
    }
    if let Some(user) = &host.user {
        option(format!("User={}", quoted(user)));
    }
    if let Some(port) = host.port {
        option(format!("Port={port}"));
    }
    if let Some(path) = &resolved.first_identity {
        option(format!("IdentityFile={}", quoted_path(path)));
    }
    if host.known_hosts.is_some() {
        let files: Vec<_> = resolved.user_known_hosts.iter().map(|path| quoted_path(path)).collect();
        option(format!("UserKnownHostsFile={}", files.join(" ")));
        option("GlobalKnownHostsFile=none".to_owned());
    }
    arguments
}

/// The options that lead through the jump hosts of hosts.toml or of the ssh configuration. `path` contains the routes
/// that wait for this one.
fn proxy_options<'a>(
    context: &'a Context,
    host: &'a HostConfig,
    resolved: &'a Resolved,
    purpose: Purpose,
    path: &'a [String],
) -> BoxFuture<'a, Result<Vec<String>, SshError>> {
    Box::pin(async move {
        let options = match &resolved.proxy {
            Proxy::Jump(hops) => {
                let command = jump_command(context, resolved, hops, purpose, path).await?;
                // Like `ssh` for its own ProxyJump: the command passes no file descriptor.
                vec![format!("ProxyCommand={command}"), "ProxyUseFdpass=no".to_owned()]
            }
            Proxy::None if host.proxy_jump.is_some() => vec!["ProxyJump=none".to_owned()],
            Proxy::None | Proxy::Command(_) => Vec::new(),
        };
        Ok(options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect())
    })
}

/// The `ProxyCommand` that connects through these jump hosts, as `ssh` makes one of its `ProxyJump`.
async fn jump_command(
    context: &Context,
    resolved: &Resolved,
    hops: &[Hop],
    purpose: Purpose,
    path: &[String],
) -> Result<String, SshError> {
    let key = route_key(resolved, hops);
    refuse_circle(path, &key)?;
    let path: Vec<String> = path.iter().cloned().chain([key]).collect();
    let (hop, host) = last_jump_host(resolved, hops)?;
    let with_name = |error| name_jump_host(hop, error);
    let resolved = resolve(context, &host).await.map_err(with_name)?;
    let proxy = proxy_options(context, &host, &resolved, purpose, &path).await.map_err(with_name)?;
    let arguments = match purpose {
        Purpose::Command => {
            let mut arguments = command_arguments(context, &host, &resolved);
            // The configuration may set a level at which `ssh` reports this login, too.
            arguments.extend(["-o", "LogLevel=INFO"].map(str::to_owned));
            arguments.extend(proxy);
            arguments.extend(["--".to_owned(), hop.host.clone()]);
            arguments
        }
        Purpose::Shell => shell_options(&host, &resolved, proxy),
    };
    let words: Vec<String> = arguments.iter().map(|word| proxy_command_word(word)).collect();
    Ok(format!("ssh -W '[%h]:%p' {}", words.join(" ")))
}

/// Quotes a word of a `ProxyCommand`. `ssh` checks its quotes, expands tokens, and passes it to the user's shell.
///
/// `ssh` reads backslashes within single quotes as escapes (misc.c, `argv_split`), but a shell does not. So a backslash is
/// only in double quotes, where both read it alike. `wire::shell::shell_word` writes `'\''`, which `ssh` misreads when
/// it is quoted again.
fn proxy_command_word(word: &str) -> String {
    let word = word.replace('%', "%%");
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "@%+=:,./-_".contains(character);
    if word.chars().all(is_plain) {
        return word;
    }
    let quoted: String = word
        .chars()
        .map(|character| match character {
            '\'' => r#"'"'"'"#.to_owned(),
            '\\' => r#"'"\\"'"#.to_owned(),
            other => other.to_string(),
        })
        .collect();
    format!("'{quoted}'")
}

/// Quotes a value for ssh_config.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
}

/// Quotes a path and escapes `%`, which ssh would expand.
fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy().replace('%', "%%"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_hops;
    use crate::ssh::{Interaction, Options, SshErrorKind};
    use std::sync::Arc;

    /// A context with this ssh configuration.
    fn context(config: &str) -> (Arc<Context>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, config).unwrap();
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some(path);
        (Context::with_options(options).0, directory)
    }

    /// The value of `-o ProxyCommand`, with the path of the configuration replaced.
    async fn proxy_command(config: &str, jump: &str, purpose: Purpose) -> Result<String, SshError> {
        let (context, directory) = context(config);
        let mut host = HostConfig::named("gpu01");
        host.proxy_jump = (!jump.is_empty()).then(|| parse_hops(jump, 0..0).unwrap());
        let resolved = resolve(&context, &host).await?;
        let options = proxy_options(&context, &host, &resolved, purpose, &[]).await?;
        let command = options.iter().find_map(|option| option.strip_prefix("ProxyCommand="));
        let path = directory.path().join("config").display().to_string();
        Ok(command.unwrap_or_default().replace(&path, "CONFIG"))
    }

    #[tokio::test]
    async fn values_of_hosts_toml_become_options() {
        let (context, directory) = context("");
        let mut host = HostConfig::named("gpu01");
        host.user = Some("bob".into());
        host.port = Some(2222);
        host.identity_file = Some("/k 100%".into());
        host.known_hosts = Some("/kh".into());
        host.proxy_jump = Some(Vec::new());
        let resolved = resolve(&context, &host).await.unwrap();
        let arguments = arguments(&context, &host, &resolved).await.unwrap().join(" ");
        assert_eq!(
            arguments.replace(&directory.path().join("config").display().to_string(), "CONFIG"),
            "-T -a -x -F CONFIG -o BatchMode=yes -o ClearAllForwardings=yes -o PermitLocalCommand=no -o Compression=no \
             -o ServerAliveInterval=15 -o ServerAliveCountMax=3 -o ConnectTimeout=5 -o User=\"bob\" -o Port=2222 \
             -o IdentityFile=\"/k 100%%\" -o UserKnownHostsFile=\"/kh\" -o GlobalKnownHostsFile=none -o ProxyJump=none"
        );
    }

    #[test]
    fn values_are_quoted_for_ssh_config() {
        assert_eq!(quoted(r#"a "b" \ c"#), r#""a \"b\" \\ c""#);
        assert_eq!(quoted_path(Path::new("/k 100%")), "\"/k 100%%\"");
    }

    #[tokio::test]
    async fn each_jump_host_gets_the_options_of_its_own_configuration() {
        // The jump host of the second one is in its configuration.
        let config =
            "Host outer\n StrictHostKeyChecking off\nHost inner\n StrictHostKeyChecking yes\n ProxyJump outer\n";
        assert_eq!(
            proxy_command(config, "ann@[fe80::1%eth0]:2200,inner", Purpose::Shell).await.unwrap(),
            "ssh -W '[%h]:%p' -o 'ProxyCommand=ssh -W '\"'\"'[%%h]:%%p'\"'\"' -F CONFIG -p 2200 -l ann -- \
             fe80::1%%%%eth0' -o ProxyUseFdpass=no -F CONFIG -- inner"
        );
        assert_eq!(
            proxy_command(config, "inner", Purpose::Shell).await.unwrap(),
            "ssh -W '[%h]:%p' -o 'ProxyCommand=ssh -W '\"'\"'[%%h]:%%p'\"'\"' -o StrictHostKeyChecking=accept-new \
             -F CONFIG -- outer' -o ProxyUseFdpass=no -F CONFIG -- inner"
        );
        let command = proxy_command(config, "outer", Purpose::Command).await.unwrap();
        assert!(command.contains(" -o StrictHostKeyChecking=accept-new "), "{command}");
        assert!(command.ends_with(" -o LogLevel=INFO -- outer"), "{command}");
        let command = proxy_command("Host gpu01\n ProxyCommand nc %h %p\n", "", Purpose::Command).await.unwrap();
        assert_eq!(command, "", "a ProxyCommand of the configuration is left to ssh");
    }

    #[test]
    fn a_shell_reads_back_a_word_that_was_quoted_several_times() {
        for word in ["it's", r"a\'b", r#"\"\\"#, "$(x) `y`", "[%h]:%p", "a b", r"'\''", "User=\"a\\\\b\"", "#x"] {
            let mut quoted = word.to_owned();
            for _ in 0..4 {
                quoted = proxy_command_word(&quoted);
            }
            for _ in 0..4 {
                let script = format!("printf %s {}", quoted.replace("%%", "%"));
                let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
                quoted = String::from_utf8(output.stdout).unwrap();
            }
            assert_eq!(quoted, word);
        }
    }

    #[tokio::test]
    async fn a_circle_of_jump_hosts_is_refused() {
        let config = "Host a\n ProxyJump b\nHost b\n ProxyJump a\n";
        let error = proxy_command(config, "a", Purpose::Command).await.unwrap_err();
        assert_eq!(error.kind, SshErrorKind::Config);
        assert_eq!(error.message, "the jump hosts lead in a circle: a through b through a");
    }

    #[tokio::test]
    async fn the_longest_list_of_jump_hosts_fits_into_one_argument() {
        let jump = "ann@gate.lab.example:2222,".repeat(8);
        let command =
            proxy_command("Host *\n StrictHostKeyChecking no\n", jump.trim_end_matches(','), Purpose::Command);
        // MAX_ARG_STRLEN of Linux (execve(2)).
        let length = command.await.unwrap().len();
        assert!(length < 128 * 1024, "{length} bytes");
    }
}
