#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpufleet::fuzzing::settings_toml(data));
