//! One test for each attack of `tests/hostile_probe`.

use super::Attacker::{NvidiaSmi, Probe, Shell};
use super::Outcome::{Named, Tolerated};
use super::withstand;

#[test]
fn endless_line() {
    withstand(Probe, "endless-line", Named);
}

#[test]
fn gigabyte_lines() {
    withstand(Probe, "gigabyte-lines", Named);
}

#[test]
fn ten_thousand_snapshots_a_second() {
    withstand(Probe, "flood", Named);
}

#[test]
fn everything_that_the_protocol_allows_at_once() {
    withstand(Probe, "largest", Named);
}

#[test]
fn lists_of_as_many_entries_as_a_line_holds() {
    withstand(Probe, "long-lists", Tolerated);
}

#[test]
fn new_processes_in_each_snapshot_of_a_failing_driver() {
    withstand(Probe, "growing-facts", Named);
}

#[test]
fn identity_that_changes_all_the_time() {
    withstand(Probe, "changing", Named);
}

#[test]
fn replies_to_requests_that_were_never_sent() {
    withstand(Probe, "uninvited-replies", Named);
}

#[test]
fn numbers_at_the_ends_of_their_ranges() {
    withstand(Probe, "extreme-numbers", Named);
}

#[test]
fn one_byte_a_second() {
    withstand(Probe, "trickle", Named);
}

#[test]
fn silence_after_the_hello() {
    withstand(Probe, "silent", Named);
}

#[test]
fn control_characters_in_every_text() {
    let screen = withstand(Probe, "control-characters", Named);
    // The texts are shown, in a harmless form.
    assert!(screen.contains("987"), "{screen}");
}

#[test]
fn endless_errors() {
    withstand(Probe, "stderr", Tolerated);
}

#[test]
fn lists_within_lists() {
    withstand(Probe, "nested", Named);
}

#[test]
fn directories_without_end_in_the_answers_of_the_script() {
    withstand(Shell, "endless-skip", Named);
}

#[test]
fn noise_without_end_before_the_first_answer() {
    withstand(Shell, "endless-noise", Named);
}

#[test]
fn many_megabytes_from_nvidia_smi() {
    withstand(NvidiaSmi, "nvidia-smi", Tolerated);
}

#[test]
fn new_processes_in_each_sample_of_nvidia_smi() {
    withstand(NvidiaSmi, "nvidia-smi-processes", Tolerated);
}
