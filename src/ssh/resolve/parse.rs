//! Parses the output of `ssh -G`, and expands `~` and the %-tokens that it leaves.

use super::resolved::{AgentSocket, Algorithms, Family, Methods, Proxy, Resolved, StrictHostKeys};
use crate::config::parse_hops;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The inputs besides the output of `ssh -G`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParseContext<'a> {
    /// The name on the command line.
    pub(super) name: &'a str,
    pub(super) home: Option<&'a Path>,
    /// Reads an environment variable, for `IdentityAgent $NAME`.
    pub(super) variable: fn(&str) -> Option<PathBuf>,
}

/// Parses the output of `ssh -G`: one keyword in lower case and its value per line. Unknown keywords and invalid values
/// are skipped, because a newer ssh may print more. [`Algorithms::parse`] parses the lists of algorithms.
///
/// # Errors
/// The reason why the proxy cannot be used.
pub(super) fn parse(output: &str, context: ParseContext<'_>) -> Result<Resolved, String> {
    let value = |keyword: &str| {
        output.lines().find_map(|line| {
            let (found, value) = line.split_once(' ')?;
            (found == keyword).then(|| value.trim())
        })
    };
    let option =
        |keyword: &str| value(keyword).filter(|value| !value.is_empty() && !value.eq_ignore_ascii_case("none"));
    let flag = |keyword: &str| value(keyword).is_some_and(|value| matches!(value, "yes" | "true"));
    let hostname = option("hostname").unwrap_or(context.name).to_owned();
    let port = option("port").and_then(|port| port.parse().ok()).unwrap_or(22);
    let user = option("user").unwrap_or_default().to_owned();
    let tokens = Tokens { home: context.home, name: context.name, hostname: &hostname, port, user: &user };
    let files = |keyword: &str| option(keyword).map(|list| paths(list, tokens)).unwrap_or_default();
    let control_path = option("controlpath").map(|path| tokens.path(path));

    let all_paths = |keyword: &str| -> Vec<PathBuf> {
        let values = output.lines().filter_map(|line| line.split_once(' ')).filter(|(found, _)| *found == keyword);
        let values = values.map(|(_, path)| path.trim()).filter(|path| !path.eq_ignore_ascii_case("none"));
        values.map(|path| tokens.path(path)).collect()
    };
    let proxy = match (option("proxyjump"), option("proxycommand")) {
        (Some(hops), _) => {
            let hops = tokens.text(hops);
            let parsed = parse_hops(&hops, 0..hops.len());
            Proxy::Jump(parsed.map_err(|diagnostic| format!("ProxyJump {hops}: {}", diagnostic.message))?)
        }
        (None, Some(command)) => {
            check_for_shell(&hostname, "host name")?;
            check_for_shell(&user, "user name")?;
            Proxy::Command(tokens.text(command))
        }
        (None, None) => Proxy::None,
    };
    let methods = methods(&value);
    let native_unsupported = native_unsupported(&option, &flag).or_else(|| methods.native_unsupported(&flag));
    let interval = option("serveraliveinterval").and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    let count = option("serveralivecountmax").and_then(|text| text.parse().ok()).unwrap_or(3);
    Ok(Resolved {
        family: match value("addressfamily") {
            Some("inet") => Family::V4,
            Some("inet6") => Family::V6,
            _ => Family::Any,
        },
        first_identity: None,
        identity_files: all_paths("identityfile"),
        certificate_files: all_paths("certificatefile"),
        identities_only: flag("identitiesonly"),
        agent: match value("identityagent") {
            None | Some("SSH_AUTH_SOCK") => AgentSocket::FromEnvironment,
            Some("none") => AgentSocket::Disabled,
            Some(socket) => match socket.strip_prefix('$') {
                Some(name) => {
                    (context.variable)(name.trim_matches(['{', '}'])).map_or(AgentSocket::Disabled, AgentSocket::Path)
                }
                None => AgentSocket::Path(tokens.path(socket)),
            },
        },
        user_known_hosts: files("userknownhostsfile"),
        global_known_hosts: files("globalknownhostsfile"),
        strict_host_keys: match value("stricthostkeychecking") {
            Some("true" | "yes") => StrictHostKeys::Yes,
            Some("accept-new") => StrictHostKeys::AcceptNew,
            Some("false" | "no" | "off") => StrictHostKeys::Off,
            _ => StrictHostKeys::Ask,
        },
        hash_known_hosts: flag("hashknownhosts"),
        host_key_alias: option("hostkeyalias").map(|alias| tokens.text(alias)),
        connect_timeout: option("connecttimeout").and_then(|text| text.parse().ok()).map(Duration::from_secs),
        methods,
        password_prompts: option("numberofpasswordprompts").and_then(|text| text.parse().ok()).unwrap_or(3),
        algorithms: Algorithms::default(),
        native_unsupported,
        keepalive: interval.map(|seconds| (Duration::from_secs(seconds), count)),
        proxy,
        control_path,
        config: None,
        option_overrides: option_overrides(&value),
        ssh_program: true,
        hostname,
        port,
        user,
    })
}

/// Parses the output of `ssh -G`. A proxy command never gets a host or user name that a shell would interpret.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let output = String::from_utf8_lossy(data);
    let home = Path::new("/home/ann");
    let context = ParseContext { name: "gpu01", home: Some(home), variable: |_| Some("/agent".into()) };
    let _ = Algorithms::parse(&output, "ciphers a,b\nmacs c\n");
    match parse(&output, context) {
        Ok(resolved) => {
            if matches!(resolved.proxy, Proxy::Command(_)) {
                let is_harmless = |name: &str| !name.contains(['`', '$', ';', '|', '&', '<', '>', '"', '\'', '\\']);
                assert!(is_harmless(&resolved.hostname) && is_harmless(&resolved.user), "{resolved:?}");
            }
            let _ = resolved.server_alive();
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// The enabled methods that `PreferredAuthentications`, if set, contains.
fn methods<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Methods {
    let preferred = |method: &str| {
        value("preferredauthentications").is_none_or(|list| list.split(',').any(|preferred| preferred.trim() == method))
    };
    Methods {
        public_key: !matches!(value("pubkeyauthentication"), Some("false" | "no")) && preferred("publickey"),
        keyboard_interactive: value("kbdinteractiveauthentication") != Some("no") && preferred("keyboard-interactive"),
        password: value("passwordauthentication") != Some("no") && preferred("password"),
    }
}

impl Methods {
    /// The method of the `ssh` program that is needed if none of ours is allowed.
    fn native_unsupported(self, flag: &dyn Fn(&str) -> bool) -> Option<String> {
        if self.public_key || self.keyboard_interactive || self.password {
            return None;
        }
        let others =
            [("gssapiauthentication", "GSSAPIAuthentication"), ("hostbasedauthentication", "HostbasedAuthentication")];
        others.iter().find(|(keyword, _)| flag(keyword)).map(|(_, name)| (*name).to_owned())
    }
}

/// Refuses shell metacharacters in a ProxyCommand, as ssh does (ssh.c, `valid_hostname`).
fn check_for_shell(word: &str, what: &str) -> Result<(), String> {
    let is_plain = |character: char| character.is_alphanumeric() || "._:%@+~-".contains(character);
    if !word.starts_with('-') && word.chars().all(is_plain) {
        return Ok(());
    }
    Err(format!("the {what} {word:?} contains characters that are not allowed in a ProxyCommand"))
}

/// The first option that the built-in client cannot follow and must not ignore, as spelled in ssh_config.
fn native_unsupported<'a>(option: &dyn Fn(&str) -> Option<&'a str>, flag: &dyn Fn(&str) -> bool) -> Option<String> {
    const VALUE_OPTIONS: [(&str, &str); 5] = [
        ("knownhostscommand", "KnownHostsCommand"),
        ("revokedhostkeys", "RevokedHostKeys"),
        ("pkcs11provider", "PKCS11Provider"),
        ("bindaddress", "BindAddress"),
        ("bindinterface", "BindInterface"),
    ];
    const FLAG_OPTIONS: [(&str, &str); 3] = [
        ("proxyusefdpass", "ProxyUseFdpass"),
        ("verifyhostkeydns", "VerifyHostKeyDNS"),
        // With it, ssh refuses a host whose address has another key in known_hosts.
        ("checkhostip", "CheckHostIP"),
    ];
    let option = VALUE_OPTIONS.iter().find(|(keyword, _)| option(keyword).is_some());
    option.or_else(|| FLAG_OPTIONS.iter().find(|(keyword, _)| flag(keyword))).map(|(_, name)| (*name).to_owned())
}

/// Overrides for the options under which ssh would not run the command or would not read its input. Only options that
/// are set get one, because an older ssh does not know all of them.
fn option_overrides<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Vec<&'static str> {
    [
        ("remotecommand", "none", "RemoteCommand=none"),
        ("sessiontype", "default", "SessionType=default"),
        ("stdinnull", "no", "StdinNull=no"),
        ("forkafterauthentication", "no", "ForkAfterAuthentication=no"),
    ]
    .into_iter()
    .filter(|(keyword, default, _)| value(keyword).is_some_and(|value| value != *default))
    .map(|(_, _, option)| option)
    .collect()
}

/// Splits paths at spaces. `ssh -G` does not quote, so a word that cannot begin a path continues the previous one.
fn paths(list: &str, tokens: Tokens<'_>) -> Vec<PathBuf> {
    let mut texts: Vec<String> = Vec::new();
    for word in list.split(' ').filter(|word| !word.is_empty()) {
        match texts.last_mut() {
            Some(last) if !word.starts_with(['/', '~']) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => texts.push(word.to_owned()),
        }
    }
    texts.iter().map(|text| tokens.path(text)).collect()
}

/// The values of the tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub(super) home: Option<&'a Path>,
    /// `%n`: the name on the command line.
    pub(super) name: &'a str,
    /// `%h`
    pub(super) hostname: &'a str,
    /// `%p`
    pub(super) port: u16,
    /// `%r`
    pub(super) user: &'a str,
}

impl Tokens<'_> {
    /// Expands the tokens. Keeps an unknown token, so that the path does not exist rather than name another file.
    pub(super) fn text(&self, text: &str) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                expanded.push(character);
                continue;
            }
            match characters.next() {
                Some('h') => expanded.push_str(self.hostname),
                Some('n' | 'k') => expanded.push_str(self.name),
                Some('p') => expanded.push_str(&self.port.to_string()),
                Some('r') => expanded.push_str(self.user),
                Some('d') => expanded.push_str(&self.home.unwrap_or(Path::new("~")).to_string_lossy()),
                Some('%') | None => expanded.push('%'),
                Some(other) => expanded.extend(['%', other]),
            }
        }
        expanded
    }

    /// Expands the tokens and a leading `~/` of a path.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        let text = self.text(text);
        match (text.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(output: &str) -> Resolved {
        let home = Path::new("/home/ann");
        parse(
            output,
            ParseContext {
                name: "gpu",
                home: Some(home),
                variable: |name| (name == "MY_AGENT").then(|| PathBuf::from("/run/my-agent")),
            },
        )
        .unwrap()
    }

    const TYPICAL: &str = "host gpu\nuser bob\nhostname gpu01.lab\nport 2222\naddressfamily any\nhashknownhosts no\n\
        identitiesonly no\nkbdinteractiveauthentication yes\npasswordauthentication yes\nproxyusefdpass no\n\
        pubkeyauthentication true\nsessiontype default\nstdinnull no\nforkafterauthentication no\n\
        stricthostkeychecking ask\nverifyhostkeydns false\nnumberofpasswordprompts 3\n\
        identityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_%r\nglobalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2\n\
        userknownhostsfile /home/ann/.ssh/known_hosts /home/ann/my keys/known_hosts\nconnecttimeout none\n\
        canonicalizePermittedcnames none\n";

    #[test]
    fn typical_output_is_parsed() {
        assert_eq!(
            parsed(TYPICAL),
            Resolved {
                hostname: "gpu01.lab".into(),
                port: 2222,
                user: "bob".into(),
                family: Family::Any,
                first_identity: None,
                identity_files: vec!["/home/ann/.ssh/id_rsa".into(), "/home/ann/.ssh/id_bob".into()],
                identities_only: false,
                agent: AgentSocket::FromEnvironment,
                user_known_hosts: vec!["/home/ann/.ssh/known_hosts".into(), "/home/ann/my keys/known_hosts".into()],
                global_known_hosts: vec!["/etc/ssh/ssh_known_hosts".into(), "/etc/ssh/ssh_known_hosts2".into()],
                strict_host_keys: StrictHostKeys::Ask,
                hash_known_hosts: false,
                host_key_alias: None,
                connect_timeout: None,
                methods: Methods { public_key: true, keyboard_interactive: true, password: true },
                password_prompts: 3,
                algorithms: Algorithms::default(),
                native_unsupported: None,
                proxy: Proxy::None,
                certificate_files: vec![],
                keepalive: None,
                control_path: None,
                config: None,
                option_overrides: vec![],
                ssh_program: true,
            }
        );
    }

    #[test]
    fn settings_other_than_the_defaults_are_parsed() {
        let resolved = parsed(
            "hostname ::1\nuser b\naddressfamily inet6\nidentitiesonly yes\nidentityagent none\nhashknownhosts yes\n\
             stricthostkeychecking accept-new\nhostkeyalias %h-%p\nconnecttimeout 7\npubkeyauthentication false\n\
             kbdinteractiveauthentication no\npasswordauthentication no\nuserknownhostsfile none\nidentityfile none\n\
             remotecommand tmux\nsessiontype none\ncontrolpath ~/.ssh/%r@%h\nport absurd\n",
        );
        assert_eq!((resolved.hostname.as_str(), resolved.port), ("::1", 22));
        assert_eq!(resolved.family, Family::V6);
        assert!(resolved.identities_only && resolved.hash_known_hosts);
        assert_eq!(resolved.agent, AgentSocket::Disabled);
        assert_eq!(resolved.strict_host_keys, StrictHostKeys::AcceptNew);
        assert_eq!(resolved.host_key_alias.as_deref(), Some("::1-22"));
        assert_eq!(resolved.connect_timeout, Some(Duration::from_secs(7)));
        assert_eq!(resolved.methods, Methods { public_key: false, keyboard_interactive: false, password: false });
        assert!(resolved.user_known_hosts.is_empty() && resolved.identity_files.is_empty());
        assert_eq!(resolved.option_overrides, ["RemoteCommand=none", "SessionType=default"]);
        for (checking, expected) in [
            ("false", StrictHostKeys::Off),
            ("off", StrictHostKeys::Off),
            ("accept-new", StrictHostKeys::AcceptNew),
            ("ask", StrictHostKeys::Ask),
            ("true", StrictHostKeys::Yes),
        ] {
            let resolved = parsed(&format!("stricthostkeychecking {checking}\n"));
            assert_eq!(resolved.strict_host_keys, expected, "{checking}");
            assert!(resolved.option_overrides.is_empty(), "{checking}");
        }
        assert_eq!(resolved.control_path, Some("/home/ann/.ssh/b@::1".into()));
    }

    #[test]
    fn options_that_only_ssh_can_follow_are_named() {
        for (line, name) in [
            ("proxyjump bastion", None),
            ("proxycommand nc %h %p", None),
            ("revokedhostkeys /etc/ssh/revoked", Some("RevokedHostKeys")),
            ("certificatefile ~/.ssh/id-cert.pub", None),
            ("preferredauthentications gssapi-with-mic\ngssapiauthentication yes", Some("GSSAPIAuthentication")),
            ("preferredauthentications publickey\ngssapiauthentication yes", None),
            ("verifyhostkeydns true", Some("VerifyHostKeyDNS")),
            ("verifyhostkeydns false", None),
            ("checkhostip yes", Some("CheckHostIP")),
            ("checkhostip no", None),
        ] {
            assert_eq!(parsed(line).native_unsupported.as_deref(), name, "{line}");
        }
    }

    #[test]
    fn proxies_are_parsed() {
        assert_eq!(parsed("proxyjump bob@gate:2222,inner").proxy.to_string(), "bob@gate:2222,inner");
        assert_eq!(parsed("proxyjump none").proxy, Proxy::None);
        let command = parsed("hostname gpu01\nport 2222\nproxycommand nc %h %p").proxy;
        assert_eq!(command, Proxy::Command("nc gpu01 2222".into()));
        let context = ParseContext { name: "gpu", home: None, variable: |_| None };
        assert_eq!(
            parse("hostname gpu;reboot\nproxycommand nc %h %p", context).unwrap_err(),
            "the host name \"gpu;reboot\" contains characters that are not allowed in a ProxyCommand"
        );
        assert_eq!(parse("proxyjump a;b", context).unwrap_err(), "ProxyJump a;b: `;` cannot be in a host name");
    }

    #[test]
    fn certificate_files_and_keepalives_are_parsed() {
        let resolved = parsed(
            "certificatefile ~/.ssh/a-cert.pub\ncertificatefile /b\nserveraliveinterval 5\nserveralivecountmax 2",
        );
        assert_eq!(resolved.certificate_files, [PathBuf::from("/home/ann/.ssh/a-cert.pub"), "/b".into()]);
        assert_eq!(resolved.keepalive, Some((Duration::from_secs(5), 2)));
        assert_eq!(parsed("serveraliveinterval 0").keepalive, None);
    }

    #[test]
    fn agent_sockets_are_parsed() {
        assert_eq!(parsed("identityagent SSH_AUTH_SOCK").agent, AgentSocket::FromEnvironment);
        assert_eq!(parsed("identityagent ~/agent").agent, AgentSocket::Path("/home/ann/agent".into()));
        assert_eq!(parsed("identityagent $MY_AGENT").agent, AgentSocket::Path("/run/my-agent".into()));
        assert_eq!(parsed("identityagent ${NOT_SET}").agent, AgentSocket::Disabled);
    }

    #[test]
    fn tokens_and_home_are_expanded() {
        let home = PathBuf::from("/home/ann");
        let tokens = Tokens { home: Some(&home), name: "gpu", hostname: "gpu01.lab", port: 2222, user: "bob" };
        assert_eq!(tokens.text("%r@%h:%p %n 100%% %q %"), "bob@gpu01.lab:2222 gpu 100% %q %");
        assert_eq!(tokens.path("~/.ssh/id_%r"), PathBuf::from("/home/ann/.ssh/id_bob"));
        assert_eq!(tokens.path("%d/key"), PathBuf::from("/home/ann/key"));
        assert_eq!(tokens.path("/etc/~/x"), PathBuf::from("/etc/~/x"));
        assert_eq!(Tokens { home: None, ..tokens }.path("~/x"), PathBuf::from("~/x"));
    }
}
