//! Resolves the configuration of a host: runs `ssh -G` and applies hosts.toml.

use super::answer_cache::{Root, user_directory};
use super::parse::{ParseContext, Tokens, parse};
use super::resolved::{Algorithms, Proxy, Resolved};
use crate::config::{HostConfig, shell_word};
use crate::ssh::Context;
use crate::ssh::child_process;
use crate::ssh::transport::{SshError, SshErrorKind};
use crate::wire::format::{DurationStyle, duration, io_cause};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// How long `ssh -G` may take. `Match exec` can run any command.
const LIMIT: Duration = Duration::from_secs(5);

/// How long an `ssh -G` holds its permit. It needs a few milliseconds of CPU; one that runs longer waits for something
/// and uses no core.
const PERMIT_LIMIT: Duration = Duration::from_millis(300);

/// Resolves every setting of `host`: from hosts.toml, else from the ssh configuration, else the default. To be called on each
/// connect, because the configuration may have changed, and `Match exec` may have another result in another network.
pub(in crate::ssh) async fn resolve(context: &Context, host: &HostConfig) -> Result<Resolved, SshError> {
    let name = host.address();
    check_name(name)?;
    let home = context.options.home.as_deref();
    let output = run_ssh_g(context, host, name).await?;
    let parsed = parse(output.as_deref().unwrap_or_default(), ParseContext { name, home, variable });
    let parsed = parsed.map_err(|reason| {
        SshError::new(SshErrorKind::Config, reason).with_hint(format!("ssh -G {}", shell_word(name)))
    })?;
    let mut resolved = match output {
        Some(output) => {
            Resolved { algorithms: Algorithms::parse(&output, default_ssh_config(context).await), ..parsed }
        }
        None => without_ssh_program(parsed, home),
    };
    if let Some(port) = host.port {
        resolved.port = port;
    }
    if let Some(user) = &host.user {
        resolved.user.clone_from(user);
    }
    if resolved.user.is_empty() {
        resolved.user = local_user().ok_or_else(|| {
            SshError::new(SshErrorKind::Config, "the user name for the login is not known")
                .with_hint("user = \"...\" in hosts.toml")
        })?;
    }
    let tokens = Tokens { home, name, hostname: &resolved.hostname, port: resolved.port, user: &resolved.user };
    // In the paths of hosts.toml only `~` is expanded, not `%`.
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

/// The output of `ssh -G` without any configuration, cached for the process. Empty on failure: then every list of a host
/// counts as set.
async fn default_ssh_config(context: &Context) -> &str {
    let running = async {
        let mut command = Command::new("ssh");
        command.args(["-G", "-T", "-F", "/dev/null", "--", "localhost"]);
        match timeout(LIMIT, child_process::output(command)).await {
            Ok(Ok(output)) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(Ok(_) | Err(_)) | Err(_) => String::new(),
        }
    };
    context.default_ssh_config.get_or_init(|| running).await
}

/// The output of `ssh -G`, or `None` if there is no `ssh` program.
async fn run_ssh_g(context: &Context, host: &HostConfig, name: &str) -> Result<Option<String>, SshError> {
    let mut arguments = vec!["-G".to_owned(), "-T".to_owned()];
    let config_file = context.config_file(host);
    if let Some(user) = &host.user {
        arguments.extend(["-l".to_owned(), user.clone()]);
    }
    if let Some(port) = host.port {
        arguments.extend(["-p".to_owned(), port.to_string()]);
    }
    arguments.extend(["--".to_owned(), name.to_owned()]);
    let key = (config_file.cloned(), arguments);
    if let Some(output) = context.ssh_g_answers.get(&key).await {
        return Ok(Some(output));
    }
    let fingerprint = if context.ssh_g_answers.is_repeated(&key)
        && let Some(directory) = user_directory(default_ssh_config(context).await)
    {
        context.ssh_g_answers.fingerprint(Root::all(config_file.map(PathBuf::as_path), &directory)).await
    } else {
        None
    };
    let permit = context.ssh_g_permits.acquire().await;
    let mut command = Command::new("ssh");
    if let Some(config) = config_file {
        command.arg("-F").arg(config);
    }
    command.args(&key.1);
    let ended = {
        let mut running = pin!(timeout(LIMIT, child_process::output(command)));
        let ended = timeout(PERMIT_LIMIT, &mut running).await;
        drop(permit);
        match ended {
            Ok(ended) => ended,
            Err(_) => running.await,
        }
    };
    let output = match ended {
        Ok(Ok(output)) => output,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Ok(Err(error)) => {
            let message = format!("running `ssh -G` failed: {}", io_cause(&error));
            return Err(SshError::new(SshErrorKind::Config, message));
        }
        Err(_) => {
            let message = format!("`ssh -G` gave no answer within {}", duration(LIMIT, DurationStyle::Seconds));
            return Err(SshError::new(SshErrorKind::Config, message)
                .with_hint(format!("time ssh -G {}   # a `Match exec` may hang", shell_word(name))));
        }
    };
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let message = format!(
            "the ssh configuration cannot be used: {}",
            stderr.lines().map(str::trim).collect::<Vec<_>>().join("; ")
        );
        return Err(SshError::new(SshErrorKind::Config, message).with_hint(format!("ssh -G {}", shell_word(name))));
    }
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(fingerprint) = fingerprint {
        context.ssh_g_answers.insert(key, &output, fingerprint);
    }
    Ok(Some(output))
}

/// Refuses names that a program could take for an option and names that cannot be host names.
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

/// Adds the default files of OpenSSH, for a machine without the `ssh` program.
fn without_ssh_program(defaults: Resolved, home: Option<&Path>) -> Resolved {
    let in_home = |files: &[&str]| -> Vec<PathBuf> {
        let directory = home.map(|home| home.join(".ssh"));
        directory.iter().flat_map(|directory| files.iter().map(|file| directory.join(file))).collect()
    };
    Resolved {
        hostname: defaults.hostname.to_ascii_lowercase(),
        identity_files: in_home(&["id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"]),
        user_known_hosts: in_home(&["known_hosts", "known_hosts2"]),
        global_known_hosts: vec!["/etc/ssh/ssh_known_hosts".into(), "/etc/ssh/ssh_known_hosts2".into()],
        ssh_program: false,
        ..defaults
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, config).unwrap();
        let mut options = Options::from_environment(Interaction::Refuse);
        options.ssh_config = Some(path);
        options.home = Some(directory.path().to_owned());
        (Context::with_options(options).0, directory)
    }

    #[tokio::test]
    async fn hosts_toml_overrides_the_ssh_configuration() {
        let (context, directory) = context(
            "Host gpu\n HostName gpu01.lab\n User conf\n Port 2200\n IdentityFile ~/.ssh/conf\n\
             Match user toml\n HostKeyAlias matched\n",
        );
        let mut host = HostConfig::named("gpu");
        let resolved = resolve(&context, &host).await.unwrap();
        assert_eq!((resolved.hostname.as_str(), resolved.port, resolved.user.as_str()), ("gpu01.lab", 2200, "conf"));
        assert_eq!(resolved.identity_files, [directory.path().join(".ssh/conf")]);
        assert_eq!(resolved.host_key_alias, None);

        host.user = Some("toml".into());
        host.port = Some(22);
        host.identity_file = Some("~/toml".into());
        host.known_hosts = Some("/kh".into());
        host.proxy_jump = Some(crate::config::parse_hops("gate", 0..4).unwrap());
        let resolved = resolve(&context, &host).await.unwrap();
        assert_eq!((resolved.hostname.as_str(), resolved.port, resolved.user.as_str()), ("gpu01.lab", 22, "toml"));
        assert_eq!(resolved.host_key_alias.as_deref(), Some("matched"), "Match saw hosts.toml's user");
        assert_eq!(resolved.first_identity, Some(directory.path().join("toml")));
        assert_eq!(resolved.identity_files, [directory.path().join(".ssh/conf")]);
        assert_eq!(resolved.user_known_hosts, [PathBuf::from("/kh")]);
        assert!(resolved.global_known_hosts.is_empty());
        assert_eq!(resolved.proxy.to_string(), "gate");
    }

    #[tokio::test]
    async fn the_error_of_an_invalid_configuration_quotes_ssh() {
        let (context, directory) = context("Hots gpu\n");
        let error = resolve(&context, &HostConfig::named("gpu")).await.unwrap_err();
        let path = directory.path().join("config").display().to_string();
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
    async fn a_hanging_configuration_does_not_delay_other_hosts() {
        let (context, _directory) = context("Match originalhost slow-* exec \"exec sleep 6\"\n User other\n");
        let slow: Vec<_> = (0..context.ssh_g_permits.available_permits() * 2)
            .map(|number| {
                let context = std::sync::Arc::clone(&context);
                tokio::spawn(async move { resolve(&context, &HostConfig::named(format!("slow-{number}"))).await })
            })
            .collect();
        // Let each task start its `ssh` or wait for a permit.
        tokio::task::yield_now().await;
        assert_eq!(context.ssh_g_permits.available_permits(), 0);
        resolve(&context, &HostConfig::named("fast")).await.unwrap();
        for task in slow {
            assert!(!task.is_finished(), "resolving waited for it");
            task.abort();
        }
    }

    #[test]
    fn invalid_names_are_refused() {
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
