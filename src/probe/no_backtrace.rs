//! Keeps the backtrace code of std out of the embedded probe, where it would be a third of the size.
//!
//! The embedded probe is stripped and aborts on panic, so a backtrace would have no names. This definition of the stack
//! walk precedes that of libgcc_s. With link-time optimization the compiler sees that no frame is ever reported and
//! removes the code behind it (250 kB: gimli, addr2line, the demangler, an inflater). A panic still prints its message
//! and location.

use std::ffi::{c_int, c_void};

/// `_URC_END_OF_STACK` of the Itanium C++ exception handling ABI, level I.
const END_OF_STACK: c_int = 5;

/// Reports the end of the stack before the first frame.
#[expect(unsafe_code, reason = "replaces a C symbol and does not dereference its arguments")]
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_callback: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}
