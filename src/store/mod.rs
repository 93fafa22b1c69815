//! Thin IO: the directories and files of gpufleet.

mod directories;
mod files;

pub use directories::{Directories, NoHome};
pub use files::{
    FileError, FileLock, LineFile, append_line, create_new, read_text, rename_bad_file, try_lock, write_atomic,
};
