#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpufleet::fuzzing::known_hosts(data));
