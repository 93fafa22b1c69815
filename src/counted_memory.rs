//! Counts the bytes of the heap that each thread of a test uses.
//!
//! The count does not depend on how the allocator reuses memory, nor on other tests, which run on other threads.
#![allow(unsafe_code, reason = "an allocator that passes each call on to the one of the system")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The bytes that a thread has allocated and not freed.
#[derive(Clone, Copy)]
struct Count {
    live: isize,
    /// The maximum of `live` since [`most_used_by`] began.
    most: isize,
}

thread_local! {
    // One variable, because each access to one takes several calls in a debug build, and every allocation of a test counts.
    static COUNT: Cell<Count> = const { Cell::new(Count { live: 0, most: 0 }) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The bytes that this thread has allocated and not freed.
pub(crate) fn live_bytes() -> isize {
    COUNT.get().live
}

/// Runs `work` and returns the maximum number of bytes that it had in use at a time, and its result.
pub(crate) fn most_used_by<T>(work: impl FnOnce() -> T) -> (isize, T) {
    let before = live_bytes();
    COUNT.set(Count { live: before, most: before });
    let result = work();
    (COUNT.get().most - before, result)
}

fn count(bytes: isize) {
    COUNT.with(|count| {
        let Count { live, most } = count.get();
        let live = live + bytes;
        count.set(Count { live, most: if live > most { live } else { most } });
    });
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
