//! Counts the bytes of the heap that each thread of a test uses.
//!
//! The count does not depend on how the allocator reuses memory, nor on other tests, which run on other threads.
#![allow(unsafe_code, reason = "an allocator that passes each call on to the one of the system")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The bytes that this thread has allocated and not freed.
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    /// The maximum of [`LIVE_BYTES`] since [`most_used_by`] began.
    static MOST_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The bytes that this thread has allocated and not freed.
pub(crate) fn live_bytes() -> isize {
    LIVE_BYTES.get()
}

/// Runs `work` and returns the maximum number of bytes that it had in use at a time, and its result.
pub(crate) fn most_used_by<T>(work: impl FnOnce() -> T) -> (isize, T) {
    let before = LIVE_BYTES.get();
    MOST_BYTES.set(before);
    let result = work();
    (MOST_BYTES.get() - before, result)
}

fn count(bytes: isize) {
    let live = LIVE_BYTES.get() + bytes;
    LIVE_BYTES.set(live);
    MOST_BYTES.set(MOST_BYTES.get().max(live));
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(pointer, layout, size) }
    }
}
