//! Which figures a GPU line has room for, and how wide each is.

use crate::app::HostSummary;

/// How wide the figures of a fleet are: the same for every pane, so that columns stand below each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValueWidths {
    /// Columns of a GPU's index.
    pub(super) index: u16,
    /// Digits of gibibytes.
    pub(super) memory: u16,
    /// Digits of watts.
    pub(super) power: u16,
}

impl ValueWidths {
    /// As wide as the widest figure of any host.
    pub(super) fn of<'a>(hosts: impl Iterator<Item = &'a HostSummary>) -> Self {
        let mut widths = Self { index: 1, memory: 2, power: 3 };
        for gpu in hosts.flat_map(|host| &host.gpus) {
            let memory = gpu.memory_total_bytes.unwrap_or(0) >> 30;
            let power = gpu.power_limit_watts.unwrap_or(0.0).max(0.0) as u64;
            widths.index = widths.index.max(digits(u64::from(gpu.index)).min(3));
            widths.memory = widths.memory.max(digits(memory).min(4));
            widths.power = widths.power.max(digits(power).min(4));
        }
        widths
    }
}

fn digits(number: u64) -> u16 {
    number.checked_ilog10().unwrap_or(0) as u16 + 1
}

/// The columns of a GPU line; 0 where a figure is not shown. Each figure but the index has one empty column before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GpuColumns {
    /// The index.
    pub(super) index: u16,
    /// The bar, or the words of a state in its place.
    pub(super) bar: u16,
    /// Utilisation.
    pub(super) percent: u16,
    /// Memory used, of the total where `with_total`.
    pub(super) memory: u16,
    /// The memory's total as well.
    pub(super) with_total: bool,
    /// Temperature.
    pub(super) temperature: u16,
    /// Power, of its limit where `with_limit`.
    pub(super) power: u16,
    /// The power limit as well.
    pub(super) with_limit: bool,
    /// The main user.
    pub(super) user: u16,
    /// Utilisation of the last minutes.
    pub(super) sparkline: u16,
    /// Empty columns before memory, temperature, power and user: one, or two where there is room to spare.
    pub(super) gap: u16,
}

impl GpuColumns {
    /// The columns for a line of `width`. What is dropped first is added last: sparkline; power limit, power; memory
    /// total; temperature; user; a longer bar; memory used; percent. Never the index and one column of state.
    pub(super) fn of(width: u16, widths: ValueWidths) -> Self {
        let mut columns = Self { index: widths.index.min(width), gap: 1, ..Self::default() };
        let mut rest = width.saturating_sub(columns.index + 1);
        let mut take = |wanted: u16, least: u16| {
            let taken = if rest >= least { wanted.min(rest) } else { 0 };
            rest -= taken;
            taken
        };
        columns.bar = take(1, 1);
        columns.percent = take(5, 5).saturating_sub(1);
        columns.memory = take(widths.memory + 2, widths.memory + 2).saturating_sub(1);
        columns.bar += take(5, 1);
        columns.user = take(9, 9).saturating_sub(1);
        columns.bar += take(3, 1);
        columns.temperature = take(4, 4).saturating_sub(1);
        let total = take(widths.memory + 1, widths.memory + 1);
        columns.with_total = total > 0;
        columns.memory += total;
        columns.bar += take(2, 1);
        columns.power = take(widths.power + 2, widths.power + 2).saturating_sub(1);
        // The limit is the same in nearly every line: air is worth more, until there is room for a sparkline too.
        let limit = if columns.power > 0 { take(widths.power + 1, widths.power + 7) } else { 0 };
        columns.with_limit = limit > 0;
        columns.power += limit;
        columns.sparkline = take(25, 6).saturating_sub(1);
        columns.gap += if columns.power > 0 { take(4, 4) / 4 } else { 0 };
        columns.bar += take(9, 1);
        columns.user += take(8, 1);
        if columns.sparkline > 0 {
            columns.sparkline += take(6, 1);
        }
        columns.bar += take(20, 1);
        columns
    }

    /// Columns that are used.
    #[cfg(test)]
    fn width(&self) -> u16 {
        let figures = [self.percent, self.memory, self.temperature, self.power, self.user, self.sparkline];
        let shown = figures.into_iter().filter(|width| *width > 0);
        let airy = if self.gap == 2 { 4 } else { 0 };
        self.index + 1 + self.bar + shown.map(|width| width + 1).sum::<u16>() + airy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H100: ValueWidths = ValueWidths { index: 1, memory: 2, power: 3 };

    #[test]
    fn figures_appear_in_the_order_of_the_sheet() {
        let shown = |width| {
            let columns = GpuColumns::of(width, H100);
            (columns.bar, columns.user, columns.temperature, columns.with_total, columns.power, columns.sparkline)
        };
        assert_eq!(shown(18), (7, 0, 0, false, 0, 0));
        assert_eq!(shown(27), (7, 8, 0, false, 0, 0));
        assert_eq!(shown(36), (9, 8, 3, true, 0, 0));
        assert_eq!(shown(38), (11, 8, 3, true, 0, 0));
        assert_eq!(shown(48), (12, 8, 3, true, 4, 0));
        assert_eq!(GpuColumns::of(48, H100).gap, 2);
        assert_eq!(shown(58), (11, 8, 3, true, 8, 10));
    }

    #[test]
    fn no_power_limit_without_power() {
        let columns = GpuColumns::of(42, H100);
        assert!(!columns.with_limit || columns.power > 4);
    }

    proptest! {
        #[test]
        fn columns_never_exceed_the_line(width in 0u16..200, index in 1u16..4, memory in 1u16..5, power in 1u16..5) {
            let columns = GpuColumns::of(width, ValueWidths { index, memory, power });
            prop_assert!(columns.width() <= width.max(columns.index + 1), "{:?}", columns);
        }
    }
}
