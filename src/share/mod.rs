//! The protocol between the collector and its viewers; docs/collector-protocol.md describes it.
//!
//! `frame` has the lines and their limits. On the side of the collector, `picture` turns the fleet into lines, `privacy`
//! leaves out what a viewer must not see, and `hub` hands every line to every viewer through a bounded queue. On the side
//! of a viewer, `viewer` turns lines back into updates of hosts. Two files have IO: `socket` listens, checks who connects,
//! and connects; `history` reads the store.

mod findings;
mod frame;
mod history;
mod hub;
mod picture;
mod privacy;
mod socket;
mod viewer;

pub use findings::Diagnosis;
pub use findings::JobVerdict;
pub use frame::{
    CollectorInfo, Frame, FrameError, HistoryFrame, HostInfo, MAX_FRAME_BYTES, Needed, NeededFacts, NeededFindings,
    RefusalKind, SHARE_PROTOCOL, ViewerHello, decode, encode, encode_query, settings_digest,
};
pub use history::{HistoryService, answer as answer_history};
pub use hub::{Hub, LineQueue};
pub use privacy::Audience;
pub use socket::{
    BindError, BoundSocket, ConnectError, SilentCollector, SocketGroup, connect, default_socket, serve,
    socket_candidates,
};
pub use viewer::{Demultiplexer, ViewerEvent};
