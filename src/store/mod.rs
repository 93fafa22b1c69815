//! Thin IO: the directories and files of gpufleet.

mod directories;
mod files;
pub mod history;
mod history_error;
pub mod history_reader;
mod history_writer;
pub mod rollup;

pub use directories::{Directories, NoHome};
pub use history::History;
pub use history_error::HistoryError;
pub use history_reader::HistoryReader;
pub use history_writer::HistoryWriter;

pub use files::{
    FileError, FileLock, LineFile, LockHeld, append_line, create_new, lock_file, lock_within, open_regular,
    read_regular, read_text, read_text_or_pipe, rename_bad_file, try_lock, write_atomic,
};
