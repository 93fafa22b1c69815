//! This very program in two other parts: the askpass of an `ssh` that we started, and what gives that `ssh` a session
//! without a terminal.
//!
//! Both are chosen by an environment variable, since `ssh` takes a program for its askpass and no arguments.

use super::askpass::{AskpassServer, AskpassToken, MAX_QUESTION_BYTES};
use crate::ssh::Context;
use crate::ssh::pausable_timeout::PausableTimeout;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Which part this program plays.
const ROLE_VARIABLE: &str = "GPUFLEET_HELPER";
const ROLE_SESSION: &str = "session";
const ROLE_ASKPASS: &str = "askpass";
/// Where the askpass asks, and in whose name.
const SOCKET_VARIABLE: &str = "GPUFLEET_ASKPASS_SOCKET";
const TOKEN_VARIABLE: &str = "GPUFLEET_ASKPASS_TOKEN";

/// The exit code of a shell for a program that cannot be started.
const CANNOT_START: u8 = 127;

/// Plays the part that the environment names, if it names one; to be called before anything else.
pub fn run_helper_role() -> Option<ExitCode> {
    let role = std::env::var_os(ROLE_VARIABLE)?;
    let mut arguments = std::env::args_os().skip(1);
    if role == ROLE_SESSION {
        let program = arguments.next()?;
        // Fails only for the leader of a group, which has a session of its own already or shares a shell's.
        let _ = rustix::process::setsid();
        let mut command = std::process::Command::new(&program);
        let error = command.args(arguments).env(ROLE_VARIABLE, ROLE_ASKPASS).exec();
        // ssh's own way of saying it, read as such by whoever started us.
        let _ = writeln!(io::stderr(), "{}: {error}", program.to_string_lossy());
        return Some(ExitCode::from(CANNOT_START));
    }
    if role == ROLE_ASKPASS && std::env::var_os(SOCKET_VARIABLE).is_some() {
        let text = arguments.next().unwrap_or_default();
        return Some(match ask(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        });
    }
    None
}

/// Passes the question on and prints the answer. No answer at all is a refusal.
fn ask(text: &OsStr) -> io::Result<()> {
    let variable = |name| std::env::var_os(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let mut question = variable(TOKEN_VARIABLE)?.into_encoded_bytes();
    question.push(b'\n');
    question.extend_from_slice(text.as_encoded_bytes());
    question.truncate(MAX_QUESTION_BYTES);
    let mut socket = UnixStream::connect(variable(SOCKET_VARIABLE)?)?;
    socket.write_all(&(question.len() as u32).to_be_bytes())?;
    socket.write_all(&question)?;
    // Room for all of it at once, so that growing leaves no copies behind.
    let mut answer = Zeroizing::new(Vec::with_capacity(MAX_QUESTION_BYTES));
    socket.take(MAX_QUESTION_BYTES as u64).read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(&answer)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// `program` in a session of its own, without a terminal that it could paint on or ask at.
pub(in crate::ssh) fn without_terminal(context: &Context, program: impl AsRef<OsStr>) -> tokio::process::Command {
    if let Some(helper_program) = &context.options.helper_program {
        let mut command = tokio::process::Command::new(helper_program);
        command.env(ROLE_VARIABLE, ROLE_SESSION).arg(program);
        return command;
    }
    let mut command = tokio::process::Command::new(program);
    command.process_group(0);
    command
}

/// The right to ask, where there is a person and a way to ask.
pub(in crate::ssh) fn askpass_token(
    context: &Context,
    host: &str,
    time_limit: &PausableTimeout,
) -> Option<AskpassToken> {
    if !can_prompt(context) {
        return None;
    }
    let askpass = context.askpass.get_or_init(|| AskpassServer::start(Arc::clone(&context.broker)).ok());
    askpass.as_ref()?.askpass_token(host, time_limit.clone(), context.options.limits.answer).ok()
}

/// Whether an `ssh` that we start can ask anybody.
pub(super) fn can_prompt(context: &Context) -> bool {
    context.broker.can_prompt() && context.options.helper_program.is_some()
}

/// Tells ssh and the programs that it starts whom to ask: us, or nobody.
pub(in crate::ssh) fn set_askpass(
    context: &Context,
    askpass_token: Option<&AskpassToken>,
    command: &mut tokio::process::Command,
) {
    command.env("SSH_ASKPASS_REQUIRE", "force");
    match (askpass_token, &context.options.helper_program) {
        (Some(askpass_token), Some(helper_program)) => {
            command
                .env("SSH_ASKPASS", helper_program)
                .env(SOCKET_VARIABLE, askpass_token.socket())
                .env(TOKEN_VARIABLE, askpass_token.token());
        }
        _ => {
            command.env("SSH_ASKPASS", "/bin/false").env_remove(SOCKET_VARIABLE).env_remove(TOKEN_VARIABLE);
        }
    }
}
