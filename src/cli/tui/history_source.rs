//! Answers the requests of the screen for stored histories: from the file of the collector on this machine, or from the
//! collector of `--collector`.

use crate::cli::CommandError;
use crate::cli::arguments::HistoryArgs;
use crate::cli::collect::history_path;
use crate::cli::saved_state::within;
use crate::fleet::{HistoryQuery, HistoryReply, HostId, Moment};
use crate::share::HistoryService;
use crate::store::HistoryReader;
use crate::wire::SafeText;
use std::time::Duration;
use tokio::sync::mpsc;

/// Answers that may wait for the event loop.
const WAITING_ANSWERS: usize = 8;

/// How long the start of the screen waits for the disk to tell whether there is a history.
const DISK_LIMIT: Duration = Duration::from_millis(500);

/// Where histories come from.
pub(super) enum HistorySource {
    /// There is no store.
    Nowhere,
    /// The store on this machine.
    File(HistoryService, mpsc::Sender<HistoryReply>, mpsc::Receiver<HistoryReply>),
    /// The collector that the screen follows, which takes the requests.
    Relay(mpsc::Receiver<HistoryReply>),
}

impl HistorySource {
    /// Uses the history of `gpufleet history`, else that of the collector on this machine if it exists. A simulated fleet
    /// has only a history that the command line names.
    ///
    /// # Errors
    /// The history of `gpufleet history` does not exist or cannot be read.
    pub(super) fn find(wanted: Option<&HistoryArgs>, simulated: bool) -> Result<Self, CommandError> {
        let path = match wanted {
            Some(arguments) => {
                let path = history_path(arguments.store.as_deref())?;
                HistoryReader::open(&path).map_err(CommandError::failed)?;
                Some(path)
            }
            None if simulated => None,
            None => history_path(None).ok().filter(|path| {
                let path = path.clone();
                within(DISK_LIMIT, move || path.exists()).unwrap_or(false)
            }),
        };
        Ok(path.map_or(Self::Nowhere, |path| {
            let (sender, answers) = mpsc::channel(WAITING_ANSWERS);
            Self::File(HistoryService::new(path), sender, answers)
        }))
    }

    /// Waits for the next answer. Cancel safe.
    pub(super) async fn next(&mut self) -> HistoryReply {
        let answer = match self {
            Self::Nowhere => None,
            Self::File(_, _, answers) | Self::Relay(answers) => answers.recv().await,
        };
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Reads the history of the store on this machine in the background. Returns the query if it is for a collector.
    pub(super) fn request(&self, query: HistoryQuery, now: Moment) -> Option<HistoryQuery> {
        let Self::File(service, sender, _) = self else { return Some(query) };
        let (service, sender) = (service.clone(), sender.clone());
        tokio::spawn(async move {
            // The screen asks again if it does not take the answer.
            let _ended = sender.try_send(service.answer(query, now.unix).await);
        });
        None
    }
}

/// The name of the host of `gpufleet history`. As in a list of targets, it may have a login name.
pub(super) fn host_name(arguments: &HistoryArgs) -> &str {
    let (host, _) = arguments.host_and_gpu();
    host.rsplit_once('@').map_or(host, |(_, name)| name)
}

/// The host of `gpufleet history` among these, and its GPU.
///
/// # Errors
/// There is no such host.
pub(super) fn find_host<'a>(
    arguments: &HistoryArgs,
    mut names: impl Iterator<Item = &'a SafeText>,
) -> Result<(HostId, Option<u32>), CommandError> {
    let (host, gpu) = arguments.host_and_gpu();
    let name = host_name(arguments);
    let position = names.position(|known| *known == *host || *known == *name);
    let index = position.and_then(|position| u32::try_from(position).ok());
    index.map(|index| (HostId(index), gpu)).ok_or_else(|| {
        CommandError::usage(format!(
            "`{}` is not one host\n  hint: `gpufleet history` takes a host, or a GPU as in hgx-01:3",
            SafeText::new(host)
        ))
    })
}
