use super::*;
use crate::ssh::{Context, Interaction, Options};

/// A key of its own for each number.
fn key(number: u8) -> Arc<PrivateKey> {
    let pair = russh::keys::ssh_key::private::Ed25519Keypair::from_seed(&[number; 32]);
    Arc::new(PrivateKey::from(pair))
}

fn file(path: &str, number: u8) -> IdentityFile {
    IdentityFile { path: path.into(), content: Ok(KeyFile::Unencrypted(key(number))) }
}

fn held(number: u8) -> AgentIdentity {
    AgentIdentity::PublicKey { key: key(number).public_key().clone(), comment: format!("held {number}") }
}

async fn resolved() -> Resolved {
    let mut options = Options::from_environment(Interaction::Refuse);
    options.ssh_config = Some("/dev/null".into());
    options.home = None;
    let (context, _) = Context::with_options(options);
    crate::ssh::resolve::resolve(&context, &crate::config::HostConfig::named("gpu01")).await.unwrap()
}

fn labels(candidates: &IdentityList) -> Vec<&str> {
    candidates.keys.iter().map(|key| key.label.as_str()).collect()
}

#[tokio::test]
async fn as_openssh_with_the_own_key_in_front() {
    let mut resolved = resolved().await;
    let files = || vec![file("/own", 1), file("/conf", 2), file("/in-agent", 3)];
    let agent = || vec![held(4), held(3)];
    resolved.first_identity = Some("/own".into());
    assert_eq!(
        labels(&order_identities(&resolved, files(), agent())),
        ["/own (ED25519)", "held 3 (ED25519, agent)", "held 4 (ED25519, agent)", "/conf (ED25519)"]
    );
    resolved.identities_only = true;
    assert_eq!(
        labels(&order_identities(&resolved, files(), agent())),
        ["/own (ED25519)", "held 3 (ED25519, agent)", "/conf (ED25519)"]
    );
    resolved.identities_only = false;
    resolved.first_identity = None;
    assert_eq!(
        labels(&order_identities(&resolved, files(), agent())),
        ["held 3 (ED25519, agent)", "held 4 (ED25519, agent)", "/own (ED25519)", "/conf (ED25519)"]
    );
}

#[tokio::test]
async fn one_key_is_offered_once() {
    let resolved = resolved().await;
    let candidates = order_identities(&resolved, vec![file("/a", 1), file("/b", 1)], vec![]);
    assert_eq!(labels(&candidates), ["/a (ED25519)"]);
}

#[tokio::test]
async fn files_that_give_no_key_are_told_where_they_were_named() {
    let mut resolved = resolved().await;
    resolved.first_identity = Some("/own".into());
    let missing = |path: &str| IdentityFile { path: path.into(), content: Err(KeyFileError::Missing) };
    let public = IdentityFile { path: "/a.pub".into(), content: Ok(KeyFile::PublicOnly(key(1).public_key().clone())) };
    let candidates = order_identities(&resolved, vec![missing("/own"), missing("/usual"), public], vec![]);
    assert!(candidates.keys.is_empty());
    assert_eq!(
        candidates.skipped,
        [
            SkippedKey {
                text: "/own does not exist".into(),
                hint: None,
                is_configured: true,
                ssh_program_may_help: false
            },
            SkippedKey {
                text: "/a.pub is a public key whose private half the agent does not have".into(),
                hint: None,
                is_configured: false,
                ssh_program_may_help: false,
            },
        ]
    );
}
