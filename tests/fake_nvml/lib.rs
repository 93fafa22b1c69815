//! A fake `libnvidia-ml.so.1`: an NVIDIA driver for tests, driven by a JSON scenario.
//!
//! ```sh
//! tests/fake_nvml/install DIR [SCENARIO.json]    # builds the library and copies it and the scenario to DIR
//! gpufleet-probe --once --pretty --nvml-library DIR/libnvidia-ml.so.1
//! LD_LIBRARY_PATH=DIR nvitop -1                  # other monitors understand it too
//! ```
//!
//! The scenario ([`scenario::Scenario`]) is the file named by `GPUFLEET_FAKE_NVML`, or `fake_nvml.json` beside the
//! library, because sshd clears the environment. The library reads the file again when it changes, so a test can change
//! values while a program watches them. Calls for values that the scenario omits return `NVML_ERROR_NOT_SUPPORTED`.
//! `tests/it/fake_driver.rs` imitates old drivers by removing names from the symbol table of a copy.
#![allow(unsafe_code, non_snake_case, reason = "the C interface of nvml.h, whose callers pass valid pointers")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "every exported function is documented in nvml.h")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::not_unsafe_ptr_arg_deref, reason = "a driver for tests")]

mod device;
mod driver;
mod events;
mod processes;
mod samples;
mod scenario;
mod system;
