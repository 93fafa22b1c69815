//! A fake `libnvidia-ml.so.1`: an NVIDIA driver that says what a script tells it to.
//!
//! ```sh
//! tests/fake_nvml/install DIR [SCENARIO.json]    # builds it and puts it and the script into DIR
//! gpufleet-probe --once --pretty --nvml-library DIR/libnvidia-ml.so.1
//! LD_LIBRARY_PATH=DIR nvitop -1                  # other tools understand it as well
//! ```
//!
//! The script ([`scenario::Scenario`]) is the file named by `GPUFLEET_FAKE_NVML`, or `fake_nvml.json` beside the
//! library (sshd clears the environment). It is read again when it changes, so a test can change values while they are
//! watched. What a script leaves out is not supported. An old driver is made by taking names out of a copy's symbol
//! table (`tests/it/fake_driver.rs`).
#![allow(unsafe_code, non_snake_case, reason = "the C interface of nvml.h, whose callers hand over valid pointers")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "every exported function is documented in nvml.h")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::not_unsafe_ptr_arg_deref, reason = "a test's driver")]

mod device;
mod driver;
mod events;
mod processes;
mod samples;
mod scenario;
mod system;
