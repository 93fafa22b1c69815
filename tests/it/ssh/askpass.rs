//! Prompts of the `ssh` program go to the prompt queue (askpass) and never to the terminal.

use super::client::{client, client_with, host, secret};
use super::servers::{CODE, LoginMethod, PASSWORD, Server};
use crate::lab::Lab;
use crate::pty::Pty;
use crate::sshd::{PASSPHRASE, Sshd};
use gpufleet::config::{Backend, HostConfig, parse_hops};
use gpufleet::ssh::{Answer, Interaction, PromptKind, SshErrorKind};
use std::fs;
use std::path::Path;
use std::time::Duration;

fn by_system(server: &Server, folder: &Path) -> HostConfig {
    let known_hosts = folder.join("known_hosts");
    fs::write(&known_hosts, server.known_hosts_line()).unwrap();
    HostConfig {
        address: Some("127.0.0.1".into()),
        port: Some(server.port),
        user: Some("bob".into()),
        known_hosts: Some(known_hosts),
        backend: Backend::System,
        ..HostConfig::named("gpu01")
    }
}

#[tokio::test]
async fn password_and_one_time_code_open_the_host() {
    let server = Server::start(LoginMethod::Password).await;
    let mut client = client(Interaction::Ask);
    let login = client.spawn(&by_system(&server, client.home.path()), "true");
    for (failures, answer) in [(0, "wrong"), (1, PASSWORD)] {
        let prompt = client.next_prompt().await;
        assert_eq!(prompt.hosts, ["gpu01"]);
        let PromptKind::Secret { text, echo, failures: before, .. } = prompt.kind else { panic!("{prompt:?}") };
        assert_eq!((text.as_str(), echo, before), ("bob@127.0.0.1's password:", false, failures));
        client.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");

    let server = Server::start(LoginMethod::Questions).await;
    let login = client.spawn(&by_system(&server, client.home.path()), "true");
    for (question, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
        let prompt = client.next_prompt().await;
        assert!(matches!(&prompt.kind, PromptKind::Secret { text, .. } if text.contains(question)), "{prompt:?}");
        client.context.answer(prompt.id, secret(answer));
    }
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_login_is_closed_and_restarted_when_somebody_answers() {
    let server = Server::start(LoginMethod::Questions).await;
    let mut client = client_with(Interaction::Ask, |options| options.limits.answer = Duration::from_millis(300));
    let direct = by_system(&server, client.home.path());
    // The second host is behind a jump host that only the ssh program can use.
    let behind = Sshd::start();
    let config = client.home.path().join("config");
    fs::write(
        &config,
        format!(
            "Host gate\n HostName 127.0.0.1\n Port {}\n User bob\n UserKnownHostsFile {}\n CheckHostIP yes\n",
            server.port,
            direct.known_hosts.as_ref().unwrap().display()
        ),
    )
    .unwrap();
    let mut through = host(&behind);
    through.ssh_config = Some(config);
    through.proxy_jump = Some(parse_hops("gate", 0..4).unwrap());
    for (host, name) in [(direct, "gpu01"), (through, "gpu01")] {
        let login = client.spawn(&host, "echo in");
        let mut prompt = client.next_prompt().await;
        assert!(matches!(&prompt.kind, PromptKind::Secret { text, .. } if text.contains("Password:")), "{prompt:?}");
        // Two prompts time out.
        for _ in 0..2 {
            prompt = client.next_prompt_after(prompt.id).await;
            let PromptKind::Secret { text, .. } = &prompt.kind else { panic!("{prompt:?}") };
            assert_eq!(text, &format!("Press Enter to log in to {name}:"));
            let before = server.connections();
            client.context.answer(prompt.id, secret(""));
            prompt = client.next_prompt().await;
            assert_eq!(server.connections(), before + 1, "the answer opens one connection");
        }
        for (question, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
            assert!(matches!(&prompt.kind, PromptKind::Secret { text, .. } if text.contains(question)), "{prompt:?}");
            client.context.answer(prompt.id, secret(answer));
            if question == "Password:" {
                prompt = client.next_prompt().await;
            }
        }
        assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
    }
    // Declining the prompt ends the login.
    let server = Server::start(LoginMethod::Questions).await;
    let login = client.spawn(&by_system(&server, client.home.path()), "true");
    let first = client.next_prompt().await;
    let prompt = client.next_prompt_after(first.id).await;
    client.context.answer(prompt.id, Answer::Decline);
    let error = login.await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (SshErrorKind::Declined, "the login as bob was cancelled at the prompt")
    );
}

#[tokio::test]
async fn one_passphrase_serves_two_hosts_and_declining_ends_the_login() {
    let sshd = Sshd::start();
    let mut client = client(Interaction::Ask);
    let mut first = host(&sshd);
    first.backend = Backend::System;
    first.identity_file = Some(sshd.locked_key());
    let second = HostConfig { name: "gpu02".into(), ..first.clone() };
    let login = [client.spawn(&first, "echo in"), client.spawn(&second, "echo in")];
    let mut prompt = client.next_prompt().await;
    while prompt.hosts.len() < 2 {
        prompt = client.next_prompt().await;
    }
    let path = sshd.locked_key().display().to_string();
    assert_eq!(prompt.kind, PromptKind::Passphrase { path, fingerprint: None, failures: 0 });
    client.context.answer(prompt.id, secret(PASSPHRASE));
    for one in login {
        assert_eq!(one.await.unwrap().unwrap().stdout, "in\n");
    }
    let login = client.spawn(&first, "true");
    let prompt = client.next_prompt().await;
    client.context.answer(prompt.id, Answer::Decline);
    let error = login.await.unwrap().unwrap_err();
    assert_eq!(error.kind, SshErrorKind::Declined);
    assert_eq!(error.message, format!("the login as {} was cancelled at the prompt", sshd.user()));
    assert!(!sshd.log().contains("Failed password"), "{}", sshd.log());
}

#[tokio::test]
async fn unknown_host_key_prompt_shows_the_text_of_ssh() {
    let sshd = Sshd::start();
    fs::remove_file(sshd.known_hosts()).unwrap();
    let mut client = client(Interaction::Ask);
    let mut host = host(&sshd);
    host.backend = Backend::System;
    let login = client.spawn(&host, "echo in");
    let prompt = client.next_prompt().await;
    let PromptKind::Secret { text, instruction, echo, .. } = &prompt.kind else { panic!("{prompt:?}") };
    assert!(*echo && text.ends_with("(yes/no/[fingerprint])?"), "{text}");
    assert!(instruction.contains(&sshd.fingerprint("ed25519")), "{instruction}");
    client.context.answer(prompt.id, secret("yes"));
    assert_eq!(login.await.unwrap().unwrap().stdout, "in\n");
    assert!(fs::read_to_string(sshd.known_hosts()).unwrap().contains(&sshd.host_key("ed25519")));
}

/// Writes a hosts.toml with one host and these additional lines.
fn hosts_toml(lab: &Lab, lines: &str) -> String {
    let sshd = &lab.hosts[0].sshd;
    let text = format!(
        "[[hosts]]\nname = \"hgx-01\"\naddress = \"127.0.0.1\"\nport = {}\nknown_hosts = \"{}\"\nnvml_library = \
         \"{}\"\n{lines}\n",
        sshd.port(),
        sshd.known_hosts().display(),
        lab.hosts[0].driver.library().display()
    );
    lab.write("hosts.toml", &text)
}

#[test]
fn programs_that_ssh_starts_cannot_write_to_the_terminal() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let painted = lab.path("painted");
    // Tries to write to the terminal, records the result, and connects to the server.
    let proxy = format!(
        "(echo PAINTED >/dev/tty && echo yes || echo no) >{} 2>&1; exec ssh -F /dev/null -o BatchMode=yes -o \
         UserKnownHostsFile={} -i {} -p {port} {}@127.0.0.1 -W 127.0.0.1:{port}",
        painted.display(),
        sshd.known_hosts().display(),
        sshd.client_key().display(),
        sshd.user(),
        port = sshd.port(),
    );
    let script = lab.write("proxy", &format!("#!/bin/sh\n{proxy}\n"));
    let config = lab
        .write("ssh_config", &format!("ProxyCommand /bin/sh {script}\nIdentityFile {}\n", sshd.client_key().display()));
    for backend in ["system", "native"] {
        let hosts = hosts_toml(&lab, &format!("backend = \"{backend}\"\nssh_config = \"{config}\""));
        let pty = Pty::gpufleet((120, 40), &[&hosts], &[("SSH_AUTH_SOCK", "")]);
        pty.wait("the GPUs", |text| text.contains("4 GPUs") && text.contains("97%"));
        assert!(fs::read_to_string(&painted).unwrap().ends_with("no\n"), "{backend}: the proxy can open the terminal");
        assert!(!String::from_utf8_lossy(&pty.bytes()).contains("PAINTED"), "{backend}");
        fs::remove_file(&painted).unwrap();
    }
}

#[test]
fn status_prompts_on_the_terminal_and_stores_no_secret() {
    let lab = Lab::start(&["hgx-01"]);
    let sshd = &lab.hosts[0].sshd;
    let key = sshd.locked_key();
    for backend in ["native", "system"] {
        let hosts = hosts_toml(&lab, &format!("backend = \"{backend}\"\nidentity_file = \"{}\"", key.display()));
        let state = lab.path(&format!("state-{backend}"));
        fs::create_dir_all(&state).unwrap();
        let folder = state.display().to_string();
        let environment = [
            ("SSH_AUTH_SOCK", ""),
            ("XDG_STATE_HOME", folder.as_str()),
            ("XDG_CACHE_HOME", folder.as_str()),
            ("XDG_CONFIG_HOME", folder.as_str()),
            ("XDG_RUNTIME_DIR", folder.as_str()),
            // Everything that can log, logs everything.
            ("RUST_LOG", "trace"),
        ];
        let mut pty = Pty::gpufleet((120, 40), &["status", &hosts], &environment);
        pty.wait_for("Passphrase for");
        pty.keys(&format!("{PASSPHRASE}\r"));
        pty.wait("the table", |text| text.contains("hgx-01") && text.contains("97"));
        assert_eq!(pty.exit_code(), 0, "{backend}");
        let written = String::from_utf8_lossy(&pty.bytes()).into_owned();
        assert!(!written.contains(PASSPHRASE), "{backend}: {written}");
        assert!(!sshd.log().contains(PASSPHRASE));
        assert_eq!(holding(&state, PASSPHRASE), Vec::<String>::new(), "{backend}");
        assert_eq!(
            fs::read_dir(&state)
                .unwrap()
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().len() > 30)
                .count(),
            0,
            "the folder of the askpass socket is removed"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_password_and_code_are_in_no_written_file() {
    for backend in ["native", "system"] {
        let server = Server::start(LoginMethod::Questions).await;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("known_hosts"), server.known_hosts_line()).unwrap();
        fs::write(
            at("hosts.toml"),
            format!(
                "[[hosts]]\nname = \"gpu01\"\naddress = \"127.0.0.1\"\nport = {}\nuser = \"bob\"\nknown_hosts = \
                 \"{}\"\nbackend = \"{backend}\"\n",
                server.port,
                at("known_hosts")
            ),
        )
        .unwrap();
        let state = at("state");
        fs::create_dir(&state).unwrap();
        let environment = [
            ("SSH_AUTH_SOCK", ""),
            ("XDG_STATE_HOME", state.as_str()),
            ("XDG_CACHE_HOME", state.as_str()),
            ("XDG_CONFIG_HOME", state.as_str()),
            ("XDG_RUNTIME_DIR", state.as_str()),
            ("RUST_LOG", "trace"),
        ];
        let mut pty = Pty::gpufleet((120, 40), &["--log", &at("ssh.log"), &at("hosts.toml")], &environment);
        // The dialog shows its caret once it accepts keys.
        for (question, answer) in [("Password:", PASSWORD), ("Verification code:", CODE)] {
            pty.wait(question, |text| text.contains(question) && text.contains('▏'));
            pty.keys(&format!("{answer}\r"));
        }
        // This server runs no shell. gpufleet retries soon, so only the log still has the error.
        let log = at("ssh.log");
        pty.wait("the end", |_| fs::read_to_string(&log).is_ok_and(|log| log.contains("the login ended before")));
        pty.signal("TERM");
        assert_eq!(pty.exit_code(), 143, "{backend}");
        assert!(!String::from_utf8_lossy(&pty.bytes()).contains(PASSWORD), "{backend}");
        for secret in [PASSWORD, CODE] {
            assert_eq!(holding(folder.path(), secret), Vec::<String>::new(), "{backend}");
        }
    }
}

/// The files below a folder that contain a text.
fn holding(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes())) {
            found.push(path.display().to_string());
        }
    }
    found
}
