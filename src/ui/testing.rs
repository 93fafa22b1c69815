//! Draws screens for tests: as cells, as text, and as a terminal emulator shows them.

use crate::app::App;
use crate::app::testing::{NOW, at};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::fmt::Write as _;
use std::num::NonZero;

/// Draws a screen at [`NOW`].
pub(super) fn cells(app: &App, size: (u16, u16)) -> Buffer {
    cells_at(app, size, NOW)
}

/// Draws a screen at this time.
pub(super) fn cells_at(app: &App, size: (u16, u16), seconds: u64) -> Buffer {
    let area = Rect::new(0, 0, size.0, size.1);
    let mut buffer = Buffer::empty(area);
    super::draw_into(app, &mut buffer, area, at(seconds));
    buffer
}

/// Returns a screen as text without trailing spaces.
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

/// Returns a buffer as text with escape sequences, to look at.
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

/// Writes a screen with colours to the folder that `GPUFLEET_SCREENS` names, if it is set.
pub(super) fn show_cells(name: &str, cells: &Buffer) {
    if let Some(folder) = std::env::var_os("GPUFLEET_SCREENS") {
        let path =
            std::path::Path::new(&folder).join(format!("{name}-{}x{}.ansi", cells.area.width, cells.area.height));
        std::fs::write(path, ansi(cells)).expect("the folder can be written");
    }
}

/// The sequences that the program must never send.
#[derive(Default)]
pub(super) struct UnexpectedSequences(pub(super) Vec<String>);

impl vt100::Callbacks for UnexpectedSequences {
    fn set_window_title(&mut self, _: &mut vt100::Screen, title: &[u8]) {
        self.0.push(format!("title {title:?}"));
    }
    fn set_window_icon_name(&mut self, _: &mut vt100::Screen, name: &[u8]) {
        self.0.push(format!("icon {name:?}"));
    }
    fn copy_to_clipboard(&mut self, _: &mut vt100::Screen, _: &[u8], data: &[u8]) {
        self.0.push(format!("clipboard {data:?}"));
    }
    fn paste_from_clipboard(&mut self, _: &mut vt100::Screen, _: &[u8]) {
        self.0.push("paste".to_owned());
    }
    fn audible_bell(&mut self, _: &mut vt100::Screen) {
        self.0.push("bell".to_owned());
    }
    fn visual_bell(&mut self, _: &mut vt100::Screen) {
        self.0.push("visual bell".to_owned());
    }
    fn unhandled_char(&mut self, _: &mut vt100::Screen, character: char) {
        self.0.push(format!("character {character:?}"));
    }
    fn unhandled_control(&mut self, _: &mut vt100::Screen, byte: u8) {
        self.0.push(format!("control {byte}"));
    }
    fn unhandled_escape(&mut self, _: &mut vt100::Screen, one: Option<u8>, two: Option<u8>, byte: u8) {
        self.0.push(format!("escape {one:?} {two:?} {byte}"));
    }
    fn unhandled_csi(
        &mut self,
        _: &mut vt100::Screen,
        one: Option<u8>,
        two: Option<u8>,
        parameters: &[&[u16]],
        letter: char,
    ) {
        // The emulator does not know every colour.
        if (one, two, letter) != (None, None, 'm') {
            self.0.push(format!("csi {one:?} {two:?} {parameters:?} {letter}"));
        }
    }
    fn unhandled_osc(&mut self, _: &mut vt100::Screen, parameters: &[&[u8]]) {
        self.0.push(format!("osc {parameters:?}"));
    }
}

/// Creates a terminal emulator of this size.
pub(super) fn emulator((columns, rows): (u16, u16)) -> vt100::Parser<UnexpectedSequences> {
    let cells = |count| NonZero::new(count).expect("a terminal has cells");
    vt100::Parser::new_with_callbacks(cells(rows), cells(columns), 0, UnexpectedSequences::default())
}

/// Replaces U+FFFD, which the emulator takes for invalid UTF-8, by a character of equal width.
pub(super) fn replace_marks(text: &str) -> String {
    text.replace('\u{fffd}', "¿")
}

/// Whether a character must not be in a cell: controls and format characters.
pub(super) fn is_forbidden(character: char) -> bool {
    character.is_control()
        || matches!(u32::from(character),
            0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfe00..=0xfe0f | 0xfeff
            | 0xfff9..=0xfffb | 0xe0000..=0xe0fff)
}

/// Draws as the program does, sends the bytes to an emulator, and compares its screen with the buffer cell by cell. Returns
/// the buffer.
pub(super) fn check_screen(app: &App, size: (u16, u16), seconds: u64, view: &str) -> Buffer {
    let options = TerminalOptions { viewport: Viewport::Fixed(Rect::new(0, 0, size.0, size.1)) };
    let mut bytes = Vec::new();
    let mut terminal = Terminal::with_options(CrosstermBackend::new(&mut bytes), options).expect("a terminal");
    let expected = terminal
        .draw(|frame| {
            super::draw(app, frame, at(seconds));
        })
        .expect("draws")
        .buffer
        .clone();
    drop(terminal);
    let mut emulator = emulator(size);
    emulator.process(replace_marks(&String::from_utf8(bytes).expect("UTF-8")).as_bytes());
    assert!(emulator.callbacks().0.is_empty(), "{view} at {size:?}: {:?}", emulator.callbacks().0);
    let mut covered = 0;
    for (index, cell) in expected.content().iter().enumerate() {
        if covered > 0 {
            covered -= 1;
            continue;
        }
        let symbol = cell.symbol();
        assert!(!symbol.chars().any(is_forbidden), "{view} at {size:?}: {symbol:?}");
        let (row, column) = (index as u16 / size.0, index as u16 % size.0);
        covered = super::format::columns(symbol).saturating_sub(1);
        // Some terminals give each character of a Hangul syllable its own cell; together they are equally wide.
        let cells = (column..=column + covered as u16).map(|column| emulator.screen().cell(row, column));
        let shown: String = cells.map(|cell| cell.expect("a cell").contents()).collect();
        // A blank that was never written is an empty cell in the emulator.
        assert!(
            shown.trim() == replace_marks(symbol).trim(),
            "{view} at {size:?}: {shown:?} for {symbol:?} in row {row}, column {column}:\n{:?}",
            expected.content()[usize::from(row * size.0)..][..usize::from(size.0)]
                .iter()
                .map(Cell::symbol)
                .collect::<Vec<_>>()
        );
    }
    expected
}
