use super::*;
use crate::fleet::fixture::at;
use crate::share::frame::{FINDINGS_PER_LINE, MAX_FRAME_BYTES};
use proptest::prelude::*;

const FIRST: &str = r#"{"collector":{"protocol":1,"host_name":"lab-head"}}"#;
const HOSTS: &str = r#"{"hosts":{"first":0,"list":[{"name":"a"},{"name":"b"}]}}"#;

/// Takes the first lines, then this one.
fn take(line: &str) -> Result<Vec<ViewerEvent>, FrameError> {
    let mut demultiplexer = Demultiplexer::default();
    for line in [FIRST, HOSTS] {
        demultiplexer.take(line.as_bytes(), at(0.0)).expect("is valid");
    }
    demultiplexer.take(line.as_bytes(), at(0.0))
}

fn error(line: &str) -> String {
    take(line).expect_err("an error").to_string()
}

#[test]
fn lines_of_a_later_version_are_ignored() {
    for line in [
        r#""pause""#,
        r#"{"weather":{"rain":true}}"#,
        r#"{"host":{"name":"a","mood":"good"}}"#,
        r#"{"host":{"name":"a","link":{"asleep":{"since":1}}}}"#,
        r#"{"host":{"name":"a","wire":{"dream":{}}}}"#,
        r#"{"host":{"name":"unheard-of","link":"stale"}}"#,
        r#""alive""#,
    ] {
        assert_eq!(take(line), Ok(Vec::new()), "{line}");
    }
}

#[test]
fn the_introduction_comes_first_and_the_list_has_no_gap() {
    let mut demultiplexer = Demultiplexer::default();
    let first = demultiplexer.take(HOSTS.as_bytes(), at(0.0)).expect_err("an error").to_string();
    assert_eq!(first, "protocol violation: the first line does not introduce a collector");
    assert_eq!(
        error(r#"{"hosts":{"first":5,"list":[]}}"#),
        "protocol violation: a part of the list of hosts is missing"
    );
}

#[test]
fn long_lists_and_lines_are_refused() {
    let hosts = vec!["{}"; 201].join(",");
    let findings = vec!["{}"; FINDINGS_PER_LINE + 1].join(",");
    let states = vec!["[\"free\",null]"; 513].join(",");
    assert!(error(&format!(r#"{{"hosts":{{"first":0,"list":[{hosts}]}}}}"#)).contains("more than 200 entries"));
    assert!(error(&format!(r#"{{"diagnosis":{{"findings":[{findings}]}}}}"#)).starts_with("protocol violation: "));
    assert!(error(&format!(r#"{{"host":{{"name":"a","states":[{states}]}}}}"#)).contains("more than 512 entries"));
    let long = format!(r#"{{"host":{{"name":"{}"}}}}"#, "x".repeat(MAX_FRAME_BYTES));
    assert_eq!(error(&long), "protocol violation: a line of more than 2097152 bytes");
    let rows = r#"{"host":{"name":"a","wire":{"snapshot":{"processes":{"rows":3000,"state":"sleeping"}}}}}"#;
    assert!(take(rows).is_err(), "the limits of the wire protocol hold");
    let mut demultiplexer = Demultiplexer::default();
    demultiplexer.take(FIRST.as_bytes(), at(0.0)).expect("is valid");
    let mut refused = None;
    for part in 0..60 {
        let list: Vec<String> = (0..200).map(|host| format!(r#"{{"name":"h{}"}}"#, part * 200 + host)).collect();
        let line = format!(r#"{{"hosts":{{"first":{},"list":[{}]}}}}"#, part * 200, list.join(","));
        refused = demultiplexer.take(line.as_bytes(), at(0.0)).err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(FrameError::TooMany { items: "hosts", limit: MAX_HOSTS }));
}

#[test]
fn a_repeated_hello_is_no_new_connection() {
    let mut demultiplexer = Demultiplexer::default();
    let hello = |pid: u32| {
        format!(
            r#"{{"host":{{"name":"b","wire":{{"hello":{{"protocol":1,"probe_version":"0","probe_pid":{pid}}}}}}}}}"#
        )
    };
    let mut counts = Vec::new();
    for line in [FIRST, HOSTS, &hello(1), &hello(1), &hello(2)] {
        counts.push(demultiplexer.take(line.as_bytes(), at(0.0)).expect("is valid").len());
    }
    assert_eq!(counts, [1, 1, 1, 0, 1]);
}

#[test]
fn a_host_that_needs_the_user_of_the_collector_says_so() {
    let line =
        r#"{"host":{"name":"a","link":{"needs_user":{"error":{"kind":"authentication","message":"no key fits"}}}}}"#;
    let events = take(line).expect("is valid");
    let [ViewerEvent::Update(HostId(0), HostUpdate::Down { error, retry_at: None, .. })] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(error.message, "the collector on lab-head needs its user: no key fits");
    assert_eq!(error.hint.as_deref(), Some("on lab-head, run: gpufleet doctor"));
}

#[test]
fn hosts_keep_their_ids_when_the_list_changes() {
    let mut demultiplexer = Demultiplexer::with_hosts(["b".into(), "gone".into()]);
    let list = r#"{"hosts":{"first":0,"list":[{"name":"a"},{"name":"b"},{"name":"b"}]}}"#;
    for line in [FIRST, list, "\"complete\""] {
        demultiplexer.take(line.as_bytes(), at(0.0)).expect("is valid");
    }
    let link = |name: &str| format!(r#"{{"host":{{"name":"{name}","link":"stale"}}}}"#);
    let events = demultiplexer.take(link("b").as_bytes(), at(0.0));
    assert_eq!(events, Ok(vec![ViewerEvent::Update(HostId(0), HostUpdate::Silent)]));
    assert_eq!(demultiplexer.take(link("a").as_bytes(), at(0.0)), Ok(vec![]));
    assert_eq!(demultiplexer.removed_hosts().collect::<Vec<_>>(), [HostId(1)]);
}

#[test]
fn a_host_that_joins_later_gets_the_next_id_if_the_viewer_takes_new_hosts() {
    let lists = [HOSTS, "\"complete\"", r#"{"hosts":{"first":0,"list":[{"name":"c"},{"name":"a"},{"name":"c"}]}}"#];
    let stale = r#"{"host":{"name":"c","link":"stale"}}"#;
    for (takes_new_hosts, names, updates) in [(true, &["a", "b", "c"][..], 1), (false, &["a", "b"], 0)] {
        let mut demultiplexer = Demultiplexer::default();
        if takes_new_hosts {
            demultiplexer = demultiplexer.with_new_hosts();
        }
        for line in [FIRST].into_iter().chain(lists) {
            demultiplexer.take(line.as_bytes(), at(0.0)).expect("is valid");
        }
        assert_eq!(demultiplexer.names(), names);
        assert_eq!(demultiplexer.removed_hosts().collect::<Vec<_>>(), [HostId(1)]);
        assert_eq!(demultiplexer.take(stale.as_bytes(), at(0.0)).expect("is valid").len(), updates);
    }
}

#[test]
fn a_collector_that_changes_its_list_again_and_again_adds_a_limited_number_of_hosts() {
    let mut demultiplexer = Demultiplexer::default().with_new_hosts();
    demultiplexer.take(FIRST.as_bytes(), at(0.0)).expect("is valid");
    for part in 0..60 {
        let list: Vec<String> = (0..200).map(|host| format!(r#"{{"name":"h{}"}}"#, part * 200 + host)).collect();
        let line = format!(r#"{{"hosts":{{"first":0,"list":[{}]}}}}"#, list.join(","));
        demultiplexer.take(line.as_bytes(), at(0.0)).expect("is valid");
    }
    assert_eq!(demultiplexer.names().len(), MAX_HOSTS);
}

#[test]
fn times_that_make_no_sense_are_left_out() {
    for age in ["-1", "1e300", "null"] {
        let line = format!(
            r#"{{"host":{{"name":"a","age_seconds":{age},"wire":{{"snapshot":{{}}}},"round_trip_seconds":-5}}}}"#
        );
        let events = take(&line).expect("is valid");
        assert!(matches!(events[..], [ViewerEvent::Update(_, HostUpdate::Snapshot(_))]), "{events:?}");
    }
    let down = r#"{"host":{"name":"a","link":{"down":{"error":{"kind":"?","message":"x"},"retry_in_seconds":1e300,"attempt":1}}}}"#;
    let events = take(down).expect("is valid");
    assert!(matches!(events[..], [ViewerEvent::Update(_, HostUpdate::Down { retry_at: None, .. })]), "{events:?}");
}

proptest! {
    #[test]
    fn any_line_is_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut demultiplexer = Demultiplexer::default();
        let _ = demultiplexer.take(FIRST.as_bytes(), at(0.0));
        let _ = demultiplexer.take(&bytes, at(0.0));
    }

    #[test]
    fn a_changed_line_is_taken_or_refused(at_byte in 0usize..120, byte in any::<u8>()) {
        let line = r#"{"host":{"name":"a","age_seconds":1.5,"wire":{"snapshot":{"gpus":{"rows":2,"power_watts":5}}},"link":"stale"}}"#;
        let mut bytes = line.as_bytes().to_vec();
        let index = at_byte % bytes.len();
        bytes[index] = byte;
        let mut demultiplexer = Demultiplexer::default();
        for line in [FIRST.as_bytes(), HOSTS.as_bytes(), &bytes] {
            let _ = demultiplexer.take(line, at(0.0));
        }
    }
}
