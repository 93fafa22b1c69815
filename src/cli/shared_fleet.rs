//! The socket of `gpufleet collect`: passes the state of the collector on to its viewers.

use super::CommandError;
use super::arguments::CollectArgs;
use super::collector::{Applied, CollectorState, EndFuture, Observer, StateReader};
use super::exit::warn;
use crate::diagnosis::Transition;
use crate::fleet::{Clock, HostId, HostUpdate, Moment};
use crate::share::{BoundSocket, HistoryService, Hub, SocketGroup, default_socket, serve};
use crate::store::Directories;
use crate::wire::SafeText;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// The viewers of the collector, as a follower of its state.
pub(super) struct SharedFleet {
    hub: SharedHub,
    server: AbortOnDrop,
}

/// Used on the event loop only: by the follower, and by the functions that read the state for a new viewer.
#[derive(Clone)]
struct SharedHub(Arc<Mutex<Hub>>);

impl SharedHub {
    fn lock(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SharedFleet {
    /// Offers the socket and serves viewers, who may read the history if there is one. Returns `None`, with a warning, if the usual socket cannot be offered: the
    /// collector does its other work. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// An option names a socket or a group that cannot be used.
    pub(super) fn start(
        arguments: &CollectArgs,
        simulated: bool,
        clock: Clock,
        history: Option<HistoryService>,
        reader: StateReader,
    ) -> Result<Option<Self>, CommandError> {
        let group = arguments.socket_group.as_deref().map(SocketGroup::find).transpose();
        let group = group.map_err(CommandError::failed)?;
        let path = match &arguments.socket {
            Some(path) => Some(path.clone()),
            // A simulated fleet must not answer in place of the real one.
            None if simulated => return Ok(None),
            None => default_socket(&Directories::find()),
        };
        let Some(path) = path else {
            warn("there is no socket for viewers: the home directory is not known; set HOME, or use --socket PATH");
            return Ok(None);
        };
        let is_required = arguments.socket.is_some() || group.is_some();
        let socket = match BoundSocket::bind(&path, group) {
            Ok(socket) => socket,
            Err(error) if is_required => return Err(CommandError::failed(error)),
            Err(error) => {
                warn(&format!("there is no socket for viewers: {error}"));
                return Ok(None);
            }
        };
        if let Some(folder) = socket.unreachable_directory() {
            let folder = SafeText::new(&folder.to_string_lossy()).to_string();
            warn(&format!(
                "the group cannot reach the socket: {folder} is closed to it\n  hint: use --socket PATH in a directory \
                 that the group may enter, for example /run/gpufleet/collect.sock"
            ));
        }
        warn(&format!("viewers connect to {}", SafeText::new(&socket.path().to_string_lossy())));
        let host_name = SafeText::from_bytes(rustix::system::uname().nodename().to_bytes());
        let hub = SharedHub(Arc::new(Mutex::new(
            Hub::new(host_name, simulated, clock.now()).with_history(history.is_some()),
        )));
        let joining = hub.clone();
        let server = tokio::spawn(serve(socket, history.map(|service| (service, clock)), move |viewer, audience| {
            let (reader, hub) = (reader.clone(), joining.clone());
            async move {
                reader
                    .read(move |state, now| hub.lock().join(&viewer, audience, (&state.fleet, &state.engine), now))
                    .await
            }
        }));
        Ok(Some(Self { hub, server: AbortOnDrop(server.abort_handle()) }))
    }
}

impl Observer for SharedFleet {
    fn before(&mut self, state: &CollectorState, host: HostId, update: &HostUpdate, now: Moment) {
        self.hub.lock().publish(&state.fleet, host, update, now);
    }

    fn applied(&mut self, _: &CollectorState, _: &Applied<'_>) {}

    fn tick(&mut self, state: &CollectorState, _: &[Transition], now: Moment) {
        self.hub.lock().tick(&state.fleet, &state.engine, now);
    }

    fn hosts_changed(&mut self, state: &CollectorState, now: Moment) {
        self.hub.lock().hosts_changed(&state.fleet, &state.engine, now);
    }

    fn finish(self: Box<Self>, _: &CollectorState, _: Moment) -> EndFuture {
        let queues = self.hub.lock().finish();
        Box::pin(async move {
            for queue in queues {
                queue.closed().await;
            }
            drop(self.server);
            Vec::new()
        })
    }
}
