//! Screens as cells and as text.

use crate::app::App;
use crate::app::testing::{NOW, at};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::fmt::Write as _;

/// The cells of a screen of this size.
pub(super) fn cells(app: &App, size: (u16, u16)) -> Buffer {
    cells_at(app, size, NOW)
}

/// The same, so many seconds after the story has begun.
pub(super) fn cells_at(app: &App, size: (u16, u16), seconds: u64) -> Buffer {
    let area = Rect::new(0, 0, size.0, size.1);
    let mut buffer = Buffer::empty(area);
    super::draw_into(app, &mut buffer, area, at(seconds));
    buffer
}

/// A screen as text, without the spaces at the ends of its lines.
pub(super) fn text(app: &App, size: (u16, u16)) -> String {
    lines(&cells(app, size)).join("\n")
}

pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    buffer
        .content()
        .chunks(width)
        .map(|row| {
            let mut line = String::new();
            let mut covered = 0;
            for cell in row {
                if covered > 0 {
                    covered -= 1;
                    continue;
                }
                line.push_str(cell.symbol());
                covered = super::format::columns(cell.symbol()).saturating_sub(1);
            }
            line.trim_end().to_owned()
        })
        .collect()
}

/// A buffer as a terminal would be told it, for looking at.
pub(super) fn ansi(buffer: &Buffer) -> String {
    use ratatui::style::{Color, Modifier};
    let mut out = String::new();
    for row in buffer.content().chunks(usize::from(buffer.area.width)) {
        let mut covered = 0;
        for cell in row {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            out.push_str("\u{1b}[0");
            match cell.fg {
                Color::Indexed(index) => drop(write!(out, ";38;5;{index}")),
                Color::Rgb(red, green, blue) => drop(write!(out, ";38;2;{red};{green};{blue}")),
                Color::Cyan => out.push_str(";36"),
                Color::Yellow => out.push_str(";33"),
                Color::LightRed => out.push_str(";91"),
                _ => {}
            }
            for (modifier, code) in [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")] {
                if cell.modifier.contains(modifier) {
                    out.push_str(code);
                }
            }
            out.push('m');
            out.push_str(cell.symbol());
            covered = super::format::columns(cell.symbol()).saturating_sub(1);
        }
        out.push_str("\u{1b}[0m\n");
    }
    out
}

/// Writes screens for a person to look at where `GPUFLEET_SCREENS` names a folder.
pub(super) fn show(name: &str, app: &App, size: (u16, u16)) {
    show_cells(name, &cells(app, size));
}

/// The same for cells.
pub(super) fn show_cells(name: &str, cells: &Buffer) {
    if let Some(folder) = std::env::var_os("GPUFLEET_SCREENS") {
        let path =
            std::path::Path::new(&folder).join(format!("{name}-{}x{}.ansi", cells.area.width, cells.area.height));
        std::fs::write(path, ansi(cells)).expect("the folder can be written");
    }
}
