//! Asking the `ssh` program.

use super::algorithms::Algorithms;
use super::expand::Tokens;
use super::parse::{ParseContext, parse};
use super::resolved::{AgentSocket, Family, Methods, Proxy, Resolved, StrictHostKeys};
use crate::config::HostConfig;
use crate::ssh::Context;
use crate::ssh::text;
use crate::ssh::transport::{SshError, SshErrorKind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// How long `ssh -G` may take; `Match exec` may run anything.
const LIMIT: Duration = Duration::from_secs(5);

/// An `ssh -G` that has not ended by then waits for something, and the next one starts: it takes a few milliseconds of
/// a core, and one that hangs takes nothing.
const TURN: Duration = Duration::from_millis(300);

/// What is known of `host`: hosts.toml before the ssh configuration before what is built in. Read anew on each connect,
/// because `Match exec` may answer differently in another network.
pub(in crate::ssh) async fn resolve(context: &Context, host: &HostConfig) -> Result<Resolved, SshError> {
    let name = host.address();
    check_name(name)?;
    let home = context.options.home.as_deref();
    let mut resolved = match run_ssh_g(context, host, name).await? {
        Some(output) => {
            let resolved = parse(&output, ParseContext { name, home, variable }).map_err(|why| {
                SshError::new(SshErrorKind::Config, why).with_hint(format!("ssh -G {}", text::shell_word(name)))
            })?;
            Resolved { algorithms: Algorithms::read(&output, default_ssh_config(context).await), ..resolved }
        }
        None => without_ssh_program(name, home),
    };
    if let Some(port) = host.port {
        resolved.port = port;
    }
    if let Some(user) = &host.user {
        resolved.user.clone_from(user);
    }
    if resolved.user.is_empty() {
        resolved.user = local_user().ok_or_else(|| {
            SshError::new(SshErrorKind::Config, "the user to log in as is not known")
                .with_hint("user = \"...\" in hosts.toml")
        })?;
    }
    let tokens = Tokens { home, name, hostname: &resolved.hostname, port: resolved.port, user: &resolved.user };
    // Only `~` is replaced in hosts.toml's paths: a `%` in them is a character like any other.
    let own_path = |path: &PathBuf| match (path.strip_prefix("~"), tokens.home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.clone(),
    };
    resolved.first_identity = host.identity_file.as_ref().map(own_path);
    if let Some(hops) = &host.proxy_jump {
        resolved.proxy = if hops.is_empty() { Proxy::None } else { Proxy::Jump(hops.clone()) };
    }
    resolved.config = context.config_file(host).cloned();
    if let Some(path) = &host.known_hosts {
        resolved.user_known_hosts = vec![own_path(path)];
        resolved.global_known_hosts = Vec::new();
    }
    Ok(resolved)
}

/// What `ssh -G` says where no configuration does, asked once a process; empty where it cannot be had, so that what is
/// said of a host counts as set.
async fn default_ssh_config(context: &Context) -> &str {
    let asking = async {
        let mut command = Command::new("ssh");
        command.args(["-G", "-T", "-F", "/dev/null", "--", "localhost"]).stdin(Stdio::null()).kill_on_drop(true);
        match timeout(LIMIT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(Ok(_) | Err(_)) | Err(_) => String::new(),
        }
    };
    context.default_ssh_config.get_or_init(|| asking).await
}

/// The output of `ssh -G`, or `None` when there is no such program.
async fn run_ssh_g(context: &Context, host: &HostConfig, name: &str) -> Result<Option<String>, SshError> {
    let turn = context.resolving.acquire().await;
    let mut command = Command::new("ssh");
    command.args(["-G", "-T"]);
    if let Some(config) = context.config_file(host) {
        command.arg("-F").arg(config);
    }
    if let Some(user) = &host.user {
        command.arg("-l").arg(user);
    }
    if let Some(port) = host.port {
        command.arg("-p").arg(port.to_string());
    }
    command.arg("--").arg(name).stdin(Stdio::null()).kill_on_drop(true);
    let mut running = pin!(timeout(LIMIT, command.output()));
    let ended = timeout(TURN, &mut running).await;
    drop(turn);
    let ended = match ended {
        Ok(ended) => ended,
        Err(_) => running.await,
    };
    let output = match ended {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(Err(error)) => {
            let message = format!("running `ssh -G` failed: {}", crate::wire::format::io_cause(&error));
            return Err(SshError::new(SshErrorKind::Config, message));
        }
        Err(_) => {
            let message = format!(
                "`ssh -G` gave no answer within {}",
                crate::wire::format::duration(LIMIT, crate::wire::format::DurationStyle::Seconds)
            );
            return Err(SshError::new(SshErrorKind::Config, message)
                .with_hint(format!("time ssh -G {}   # a `Match exec` may hang", text::shell_word(name))));
        }
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!(
            "the ssh configuration cannot be used: {}",
            stderr.lines().map(str::trim).collect::<Vec<_>>().join("; ")
        );
        return Err(
            SshError::new(SshErrorKind::Config, message).with_hint(format!("ssh -G {}", text::shell_word(name)))
        );
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// A name that could be taken for an option, or could not be a name, never reaches a program.
fn check_name(name: &str) -> Result<(), SshError> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.starts_with('-') {
        "begins with a dash"
    } else if name.chars().any(|character| character.is_control() || character.is_whitespace()) {
        "contains blanks or control characters"
    } else {
        return Ok(());
    };
    Err(SshError::new(SshErrorKind::Config, format!("the address {name:?} {problem}"))
        .with_hint("address = \"...\" in hosts.toml"))
}

/// What OpenSSH would do with no configuration at all.
fn without_ssh_program(name: &str, home: Option<&Path>) -> Resolved {
    let in_home = |files: &[&str]| -> Vec<PathBuf> {
        let folder = home.map(|home| home.join(".ssh"));
        folder.iter().flat_map(|folder| files.iter().map(|file| folder.join(file))).collect()
    };
    Resolved {
        hostname: name.to_ascii_lowercase(),
        port: 22,
        user: String::new(),
        family: Family::Any,
        first_identity: None,
        identity_files: in_home(&["id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"]),
        identities_only: false,
        agent: AgentSocket::FromEnvironment,
        user_known_hosts: in_home(&["known_hosts", "known_hosts2"]),
        global_known_hosts: vec!["/etc/ssh/ssh_known_hosts".into(), "/etc/ssh/ssh_known_hosts2".into()],
        strict_host_keys: StrictHostKeys::Ask,
        hash_known_hosts: false,
        host_key_alias: None,
        connect_timeout: None,
        methods: Methods::ALL,
        password_prompts: 3,
        algorithms: Algorithms::default(),
        native_unsupported: None,
        proxy: Proxy::None,
        certificate_files: Vec::new(),
        keepalive: None,
        control_path: None,
        config: None,
        option_overrides: Vec::new(),
        ssh_program: false,
    }
}

fn local_user() -> Option<String> {
    ["LOGNAME", "USER", "USERNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|user| !user.is_empty())
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::{Interaction, Options};

    fn context(config: &str) -> (std::sync::Arc<Context>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, config).unwrap();
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some(path);
        options.home = Some(folder.path().to_owned());
        (Context::with_options(options).0, folder)
    }

    #[tokio::test]
    async fn hosts_toml_stands_above_the_ssh_configuration() {
        let (context, folder) = context(
            "Host gpu\n HostName gpu01.lab\n User conf\n Port 2200\n IdentityFile ~/.ssh/conf\n\
             Match user toml\n HostKeyAlias matched\n",
        );
        let mut host = HostConfig::named("gpu");
        let resolved = resolve(&context, &host).await.unwrap();
        assert_eq!((resolved.hostname.as_str(), resolved.port, resolved.user.as_str()), ("gpu01.lab", 2200, "conf"));
        assert_eq!(resolved.identity_files, [folder.path().join(".ssh/conf")]);
        assert_eq!(resolved.host_key_alias, None);

        host.user = Some("toml".into());
        host.port = Some(22);
        host.identity_file = Some("~/toml".into());
        host.known_hosts = Some("/kh".into());
        host.proxy_jump = Some(crate::config::parse_hops("gate", 0..4).unwrap());
        let resolved = resolve(&context, &host).await.unwrap();
        assert_eq!((resolved.hostname.as_str(), resolved.port, resolved.user.as_str()), ("gpu01.lab", 22, "toml"));
        assert_eq!(resolved.host_key_alias.as_deref(), Some("matched"), "Match saw hosts.toml's user");
        assert_eq!(resolved.first_identity, Some(folder.path().join("toml")));
        assert_eq!(resolved.identity_files, [folder.path().join(".ssh/conf")]);
        assert_eq!(resolved.user_known_hosts, [PathBuf::from("/kh")]);
        assert!(resolved.global_known_hosts.is_empty());
        assert_eq!(resolved.proxy.to_string(), "gate");
    }

    #[tokio::test]
    async fn a_configuration_that_ssh_refuses_is_passed_on() {
        let (context, folder) = context("Hots gpu\n");
        let error = resolve(&context, &HostConfig::named("gpu")).await.unwrap_err();
        let path = folder.path().join("config").display().to_string();
        assert_eq!(
            error,
            SshError::new(
                SshErrorKind::Config,
                format!(
                    "the ssh configuration cannot be used: {path}: line 1: Bad configuration option: hots; \
                     {path}: terminating, 1 bad configuration options"
                )
            )
            .with_hint("ssh -G gpu")
        );
    }

    #[tokio::test]
    async fn hosts_whose_configuration_hangs_do_not_delay_the_others() {
        let (context, _folder) = context("Match originalhost slow-* exec \"exec sleep 6\"\n User other\n");
        let slow: Vec<_> = (0..context.resolving.available_permits() * 2)
            .map(|number| {
                let context = std::sync::Arc::clone(&context);
                tokio::spawn(async move { resolve(&context, &HostConfig::named(format!("slow-{number}"))).await })
            })
            .collect();
        // Each task starts, and waits for its `ssh` or its turn.
        tokio::task::yield_now().await;
        assert_eq!(context.resolving.available_permits(), 0);
        resolve(&context, &HostConfig::named("fast")).await.unwrap();
        for task in slow {
            assert!(!task.is_finished(), "it was waited for");
            task.abort();
        }
    }

    #[test]
    fn names_that_never_reach_a_program() {
        for (name, message) in [
            ("", "the address \"\" is empty"),
            ("-oProxyCommand=x", "the address \"-oProxyCommand=x\" begins with a dash"),
            ("a b", "the address \"a b\" contains blanks or control characters"),
            ("a\nb", "the address \"a\\nb\" contains blanks or control characters"),
        ] {
            assert_eq!(check_name(name).unwrap_err().message, message);
        }
        assert!(check_name("gpu01.lab").is_ok() && check_name("fe80::1%eth0").is_ok());
    }
}
