//! Tests that wait for up to a minute: for the second reading of an examination, for a job that looks hung, for the next query of
//! Slurm, and for the next read of a command line. Tests start in the order of their names, and these would end a minute after
//! all others.

use crate::{probe, share, slurm, why};

#[test]
fn why_examines_a_process_twice_through_sshd() {
    why::why_examines_a_process_twice_through_sshd();
}

#[test]
fn why_queries_nccl_ras_through_sshd_only_with_consent() {
    why::why_queries_nccl_ras_through_sshd_only_with_consent();
}

#[test]
fn why_names_the_hosts_that_did_not_report() {
    why::why_names_the_hosts_that_did_not_report();
}

#[test]
fn findings_tell_how_a_job_ended_while_slurmctld_was_down() {
    slurm::findings_tell_how_a_job_ended_while_slurmctld_was_down();
}

#[test]
fn signal_is_not_sent_to_another_program_with_the_same_name_and_start_time() {
    probe::lifecycle::signal_is_not_sent_to_another_program_with_the_same_name_and_start_time();
}

#[test]
fn the_finding_about_a_job_that_looks_hung_warns_with_its_verdict() {
    why::the_finding_about_a_job_that_looks_hung_warns_with_its_verdict();
}

#[test]
fn why_examines_a_job_of_a_collector_over_an_own_session() {
    share::why_examines_a_job_of_a_collector_over_an_own_session();
}
