//! Which columns the combined list has room for.

use crate::fleet::SortKey;

/// A column of the combined list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// The host.
    Host,
    /// Its GPUs.
    Gpu,
    /// Process id.
    Pid,
    /// Who it belongs to.
    User,
    /// GPU memory.
    GpuMemory,
    /// GPU memory as a share.
    GpuMemoryPercent,
    /// SM share.
    Sm,
    /// SM share of the last minutes.
    Sparkline,
    /// CPU share.
    Cpu,
    /// Resident memory.
    Rss,
    /// Letter of the process state.
    ProcessState,
    /// Age.
    Time,
    /// State in words.
    State,
    /// Command line.
    Command,
}

impl Column {
    /// Every column, in order.
    pub(super) const ALL: [Self; 14] = [
        Self::Host,
        Self::Gpu,
        Self::Pid,
        Self::User,
        Self::GpuMemory,
        Self::GpuMemoryPercent,
        Self::Sm,
        Self::Sparkline,
        Self::Cpu,
        Self::Rss,
        Self::ProcessState,
        Self::Time,
        Self::State,
        Self::Command,
    ];

    /// The head of the column.
    pub(super) fn header(self) -> &'static str {
        match self {
            Self::Host => "HOST",
            Self::Gpu => "GPU",
            Self::Pid => "PID",
            Self::User => "USER",
            Self::GpuMemory => "GMEM",
            Self::GpuMemoryPercent => "%GM",
            Self::Sm => "SM%",
            Self::Sparkline => "SM 2min",
            Self::Cpu => "CPU%",
            Self::Rss => "RSS",
            Self::ProcessState => "S",
            Self::Time => "TIME",
            Self::State => "STATE",
            Self::Command => "COMMAND",
        }
    }

    /// What sorts by this column.
    pub(super) fn sort_key(self) -> Option<SortKey> {
        Some(match self {
            Self::Host => SortKey::Host,
            Self::Gpu => SortKey::Gpu,
            Self::Pid => SortKey::Pid,
            Self::User => SortKey::User,
            Self::GpuMemory => SortKey::GpuMemory,
            Self::GpuMemoryPercent => SortKey::GpuMemoryPercent,
            Self::Sm => SortKey::Sm,
            Self::Cpu => SortKey::Cpu,
            Self::Rss => SortKey::Rss,
            Self::Time => SortKey::Time,
            Self::State => SortKey::State,
            Self::Command => SortKey::Command,
            Self::Sparkline | Self::ProcessState => return None,
        })
    }

    /// Whether figures stand at the right of the column.
    pub(super) fn is_numeric(self) -> bool {
        matches!(
            self,
            Self::Pid | Self::GpuMemory | Self::GpuMemoryPercent | Self::Sm | Self::Cpu | Self::Rss | Self::Time
        )
    }
}

/// The fewest columns of a command line.
const COMMAND_MIN_COLUMNS: u16 = 12;
/// Columns of a command line that are worth more than the columns that are dropped first.
const COMMAND_PREFERRED_COLUMNS: u16 = 30;
/// Columns between two columns.
const GAP: u16 = 1;

/// The columns for a line of `width` with their widths. Dropped in this order: RSS, S, %GM, CPU%, history, TIME, PID; the
/// first three already where the command would be short.
/// `host` is the width of the longest name; 0 where all rows are of one host.
pub(super) fn list_columns(width: u16, host: u16) -> Vec<(Column, u16)> {
    use Column::{
        Command, Cpu, Gpu, GpuMemory, GpuMemoryPercent, Host, Pid, ProcessState, Rss, Sm, Sparkline, State, Time, User,
    };
    const DROPPED: [Column; 7] = [Rss, ProcessState, GpuMemoryPercent, Cpu, Sparkline, Time, Pid];
    let is_wide = width >= 116;
    let mut columns = vec![
        (Host, host.clamp(4, if is_wide { 20 } else { 12 })),
        (Gpu, 5),
        (Pid, 7),
        (User, if is_wide { 10 } else { 8 }),
        (GpuMemory, 5),
        (GpuMemoryPercent, 4),
        (Sm, if is_wide { 7 } else { 4 }),
        (Sparkline, if width >= 150 { 12 } else { 8 }),
        (Cpu, 5),
        (Rss, 5),
        (ProcessState, 1),
        (Time, 5),
        (State, if width >= 150 { 19 } else { 12 }),
    ];
    if host == 0 {
        columns.remove(0);
    }
    let used = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + GAP).sum::<u16>();
    for (index, dropped) in DROPPED.into_iter().enumerate() {
        let command = if index < 3 { COMMAND_PREFERRED_COLUMNS } else { COMMAND_MIN_COLUMNS };
        if used(&columns) + command > width {
            columns.retain(|(column, _)| *column != dropped);
        }
    }
    // On the narrowest screens names give way, down to the six columns that tell hosts apart.
    for (column, width_of) in &mut columns {
        let least = match column {
            Host | User => 6,
            State => 9,
            _ => continue,
        };
        *width_of = (*width_of).min(if width < 60 { least } else { u16::MAX });
    }
    // What is too much even then is taken from the state: its first word says most.
    let excess = used(&columns).saturating_sub(width + GAP);
    if let Some((_, state)) = columns.last_mut() {
        *state = state.saturating_sub(excess).max(5);
    }
    let rest = width.saturating_sub(used(&columns));
    columns.push((Command, rest));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(width: u16) -> String {
        list_columns(width, 6).iter().map(|(column, _)| column.header()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn columns_go_in_the_order_of_the_sheet() {
        assert_eq!(headers(130), "HOST GPU PID USER GMEM %GM SM% SM 2min CPU% RSS S TIME STATE COMMAND");
        assert_eq!(headers(118), "HOST GPU PID USER GMEM %GM SM% SM 2min CPU% S TIME STATE COMMAND");
        assert_eq!(headers(86), "HOST GPU PID USER GMEM SM% SM 2min TIME STATE COMMAND");
        assert_eq!(headers(78), "HOST GPU PID USER GMEM SM% TIME STATE COMMAND");
        assert_eq!(headers(74), "HOST GPU PID USER GMEM SM% TIME STATE COMMAND");
        assert_eq!(headers(66), "HOST GPU PID USER GMEM SM% STATE COMMAND");
        assert_eq!(headers(60), "HOST GPU USER GMEM SM% STATE COMMAND");
        assert_eq!(headers(38), "HOST GPU USER GMEM SM% STATE COMMAND");
    }

    #[test]
    fn the_command_keeps_twelve_columns_from_fifty_on() {
        for width in 53..300 {
            let columns = list_columns(width, 8);
            let (_, command) = columns.last().expect("a command");
            assert!(*command >= COMMAND_MIN_COLUMNS, "{width}: {command}");
            assert_eq!(columns.iter().map(|(_, width)| width + GAP).sum::<u16>() - GAP, width);
        }
    }

    #[test]
    fn no_column_leaves_the_narrowest_list() {
        // A screen of 40 columns, with its frame and a column for tags.
        for width in 36..60 {
            for host in [0, 4, 40] {
                let columns = list_columns(width, host);
                let used: u16 = columns.iter().filter(|(_, width)| *width > 0).map(|(_, width)| width + GAP).sum();
                assert!(used <= width + GAP, "{width}, {host}: {columns:?}");
            }
        }
    }

    #[test]
    fn a_single_host_needs_no_name() {
        assert!(list_columns(118, 0).iter().all(|(column, _)| *column != Column::Host));
    }
}
