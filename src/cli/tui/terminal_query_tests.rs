use super::*;
use proptest::prelude::*;

fn typed(bytes: &[u8]) -> Vec<KeyEvent> {
    let mut typed = InputParser::default();
    typed.take(bytes);
    typed.into_keys()
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new(code, modifiers)
}

/// What keyboards send, and the keys that crossterm makes of it.
const KEYS: [(&[u8], KeyCode, KeyModifiers); 34] = {
    use KeyCode::{
        BackTab, Backspace, Char, Delete, Down, End, Enter, F, Home, Insert, Left, PageDown, PageUp, Right, Tab, Up,
    };
    const NONE: KeyModifiers = KeyModifiers::NONE;
    const CONTROL: KeyModifiers = KeyModifiers::CONTROL;
    [
        (b"q", Char('q'), NONE),
        (b"/", Char('/'), NONE),
        (b"G", Char('G'), KeyModifiers::SHIFT),
        ("é".as_bytes(), Char('é'), NONE),
        ("大".as_bytes(), Char('大'), NONE),
        ("🦀".as_bytes(), Char('🦀'), NONE),
        (b"\r", Enter, NONE),
        (b"\t", Tab, NONE),
        (b"\x1b[Z", BackTab, KeyModifiers::SHIFT),
        (b"\x7f", Backspace, NONE),
        (b"\x03", Char('c'), CONTROL),
        (b"\x0c", Char('l'), CONTROL),
        (b"\x1a", Char('z'), CONTROL),
        (b"\x1f", Char('7'), CONTROL),
        (b"\0", Char(' '), CONTROL),
        (b"\x1bj", Char('j'), KeyModifiers::ALT),
        (b"\x1b[A", Up, NONE),
        (b"\x1b[B", Down, NONE),
        (b"\x1b[C", Right, NONE),
        (b"\x1bOD", Left, NONE),
        (b"\x1b[1;5C", Right, CONTROL),
        (b"\x1b[1;2H", Home, KeyModifiers::SHIFT),
        (b"\x1b[F", End, NONE),
        (b"\x1b[2~", Insert, NONE),
        (b"\x1b[3~", Delete, NONE),
        (b"\x1b[5~", PageUp, NONE),
        (b"\x1b[6~", PageDown, NONE),
        (b"\x1bOP", F(1), NONE),
        (b"\x1b[[B", F(2), NONE),
        (b"\x1b[15~", F(5), NONE),
        (b"\x1b[17~", F(6), NONE),
        (b"\x1b[21~", F(10), NONE),
        (b"\x1b[24~", F(12), NONE),
        (b"\x1b[1;3P", F(1), KeyModifiers::ALT),
    ]
};

const ANSWERS: [&[u8]; 4] = [
    b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22c",
    b"\x1b]11;rgb:ffff/ffff/ffff\x07\x1b[?6c",
    b"\x1b[?1;2c",
    b"\x1b]11;rgba:ffff/ffff/ffff/ffff\x1b\\\x1b[?62;c",
];

#[test]
fn keys_have_the_names_that_crossterm_gives_them() {
    for (bytes, code, modifiers) in KEYS {
        assert_eq!(typed(bytes), [key(code, modifiers)], "{:?}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(typed(b"\x1b"), [KeyCode::Esc.into()], "nothing followed");
    assert_eq!(typed(b"\x1b\x1b[A"), [KeyCode::Esc.into(), KeyCode::Up.into()]);
}

#[test]
fn what_is_no_key_is_none() {
    for bytes in [&b"\xff\xfe"[..], b"\x1b[I", b"\x1b[200~", b"\x1b[99~", b"\x1bPtext\x1b\\", b"\xe5\xa4", b"\xf5"] {
        assert_eq!(typed(bytes), [], "{bytes:?}");
    }
    assert_eq!(typed(b"\xe5q"), [KeyCode::Char('q').into()], "a broken character takes no other with it");
    let endless = [b"\x1b]".to_vec(), vec![b'x'; 2 * MAX_SEQUENCE], b"q".to_vec()].concat();
    let mut ahead = InputParser::default();
    ahead.take(&endless);
    ahead.take(b"q");
    assert_eq!(ahead.into_keys(), [KeyCode::Char('q').into()], "what never ends is dropped");
}

proptest! {
    /// Keys before and after the answers, read in pieces of any size.
    #[test]
    fn keys_between_answers_are_kept_in_order(
        before in prop::collection::vec(0..KEYS.len(), 0..6), after in prop::collection::vec(0..KEYS.len(), 0..6),
        answer in 0..ANSWERS.len(), pieces in prop::collection::vec(1..9_usize, 1..40),
    ) {
        let bytes = |places: &[usize]| places.iter().flat_map(|place| KEYS[*place].0.to_vec()).collect::<Vec<_>>();
        let all = [bytes(&before), ANSWERS[answer].to_vec(), bytes(&after)].concat();
        let mut ahead = InputParser::default();
        let (mut rest, mut pieces) = (&all[..], pieces.into_iter().cycle());
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(pieces.next().expect("it goes round").min(rest.len()));
            ahead.take(piece);
            rest = left;
        }
        prop_assert!(ahead.is_answered() && ahead.is_between());
        prop_assert_eq!(ahead.background().is_some(), answer != 2);
        let expected: Vec<KeyEvent> =
            before.iter().chain(&after).map(|place| key(KEYS[*place].1, KEYS[*place].2)).collect();
        prop_assert_eq!(ahead.into_keys(), expected);
    }

    #[test]
    fn no_bytes_make_it_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut ahead = InputParser::default();
        for piece in bytes.chunks(7) {
            ahead.take(piece);
            prop_assert!(ahead.rest.len() <= MAX_SEQUENCE + 16);
        }
    }
}

/// As crossterm reads it.
fn late(answer: &str) -> Vec<KeyEvent> {
    let alt = |letter| key(KeyCode::Char(letter), KeyModifiers::ALT);
    let letters = answer.chars().map(|letter| KeyCode::Char(letter).into());
    [alt(']')].into_iter().chain(letters).chain([alt('\\')]).collect()
}

#[test]
fn an_answer_after_its_time_is_no_key() {
    let filter = |may_answer: bool, keys: &[KeyEvent]| -> Vec<KeyEvent> {
        let mut late = LateReplyFilter::new(may_answer);
        keys.iter().flat_map(|key| late.filter(*key)).collect()
    };
    let q: KeyEvent = KeyCode::Char('q').into();
    let answer = late("11;rgb:1e1e/1e1e/2e2e");
    assert_eq!(filter(true, &[&[q], &answer[..], &[q]].concat()), [q, q]);
    let bell = key(KeyCode::Char('g'), KeyModifiers::CONTROL);
    assert_eq!(filter(true, &[&answer[..answer.len() - 1], &[bell, q]].concat()), [q]);
    // Whoever types something like it types it.
    let like_it = late("12;");
    assert_eq!(filter(true, &like_it), like_it);
    assert_eq!(filter(false, &answer), answer, "nothing was asked");
    let twice = [&answer[..], &answer].concat();
    assert_eq!(filter(true, &twice), answer, "it answers once");
    let endless = late(&("11;".to_owned() + &"x".repeat(2 * MAX_SEQUENCE)));
    assert!(!filter(true, &endless).is_empty(), "what never ends lets go");
}
