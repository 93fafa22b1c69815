//! Thin IO: directories and files of ours.
