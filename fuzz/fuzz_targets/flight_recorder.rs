#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpufleet::fuzzing::flight_recorder(data));
