//! Reads a Python pickle of plain values, without executing anything.
//!
//! PyTorch writes dumps of its Flight Recorder with `torch::jit::Pickler` (`torch/csrc/jit/serialization/pickler.cpp`): protocol
//! 2 with dictionaries, lists, tuples, texts, numbers, booleans and `None`. A pickle may also contain instructions that import and
//! call Python functions. This reader has none of them and refuses the file at the first one.
//!
//! Opcodes: `Lib/pickletools.py` of CPython.

use std::io::Read;
use std::rc::Rc;

/// Maximum number of values that wait on the stack, and of remembered values.
const MAX_VALUES: usize = 64 * 1024;
/// Maximum number of values in all, and of values that are compared while others are remembered. A dump of 2000 operations has
/// about 150,000.
const MAX_STEPS: usize = 4 << 20;
/// Maximum number of nested containers. A dump has six.
const MAX_DEPTH: usize = 16;
/// Maximum number of bytes of all remembered texts.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// A value of a pickle.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// `None`, a fraction, or a value that is not kept.
    Nothing,
    Flag(bool),
    Number(i64),
    Text(Rc<str>),
    /// A list or a tuple.
    List(Rc<Vec<Value>>),
    /// Keys and values in turn.
    Dict(Rc<Vec<Value>>),
}

impl Value {
    /// Returns a value of a dictionary.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(items) = self else { return None };
        let mut pairs = items.chunks_exact(2);
        pairs.find_map(|pair| (pair[0].text() == Some(key)).then_some(&pair[1]))
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn number(&self) -> Option<i64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub(super) fn items(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }

    fn is_container(&self) -> bool {
        matches!(self, Self::List(_) | Self::Dict(_))
    }

    /// Returns a copy to remember. Containers of containers are not remembered, so that no value is nested deeper than
    /// [`MAX_DEPTH`].
    fn to_remember(&self) -> Self {
        match self {
            Self::List(items) | Self::Dict(items) if items.iter().any(Self::is_container) => Self::Nothing,
            value => value.clone(),
        }
    }
}

/// Why a pickle could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It ends midway, or is no pickle.
    Malformed,
    /// It has an instruction that is not for plain values, such as the import of a function.
    OtherInstruction(u8),
    /// It exceeds a limit.
    TooLarge,
}

/// Reads a pickle. `visit` takes each dictionary that is an element of a list in the outermost dictionary, with the key of that
/// list, as soon as it is complete; the list in the result has [`Value::Nothing`] in its place. The outermost dictionary is
/// passed to `visit` as far as it is known then.
pub(super) fn read_pickle(
    source: &mut dyn Read,
    visit: &mut dyn FnMut(&[Value], &str, &Value),
) -> Result<Value, Unreadable> {
    let mut machine =
        Machine { source, stack: Vec::new(), marks: Vec::new(), memory: Vec::new(), text_bytes: 0, steps: 0 };
    while machine.step(visit)? {}
    match machine.stack.pop() {
        Some(value) if machine.stack.is_empty() && machine.marks.is_empty() => Ok(value),
        _ => Err(Unreadable::Malformed),
    }
}

struct Machine<'a> {
    source: &'a mut dyn Read,
    stack: Vec<Value>,
    /// The positions in `stack` at which the contents of open containers begin. The container itself is before.
    marks: Vec<usize>,
    /// The values to which later ones refer by their position.
    memory: Vec<Value>,
    text_bytes: usize,
    /// See [`MAX_STEPS`].
    steps: usize,
}

impl Machine<'_> {
    /// Executes one instruction. Returns `false` after the last one.
    fn step(&mut self, visit: &mut dyn FnMut(&[Value], &str, &Value)) -> Result<bool, Unreadable> {
        let [opcode] = self.bytes()?;
        match opcode {
            // PROTO
            0x80 => {
                let [_version] = self.bytes()?;
            }
            b'}' => self.push(Value::Dict(Rc::default()))?,
            b']' | b')' => self.push(Value::List(Rc::default()))?,
            b'N' => self.push(Value::Nothing)?,
            0x88 => self.push(Value::Flag(true))?,
            0x89 => self.push(Value::Flag(false))?,
            // BININT1, BININT2, BININT, LONG1
            b'K' => {
                let [byte] = self.bytes()?;
                self.push(Value::Number(byte.into()))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.bytes()?);
                self.push(Value::Number(number.into()))?;
            }
            b'J' => {
                let number = i32::from_le_bytes(self.bytes()?);
                self.push(Value::Number(number.into()))?;
            }
            0x8a => {
                let number = self.long()?;
                self.push(Value::Number(number))?;
            }
            // BINFLOAT
            b'G' => {
                let _fraction: [u8; 8] = self.bytes()?;
                self.push(Value::Nothing)?;
            }
            // BINUNICODE
            b'X' => {
                let length = u32::from_le_bytes(self.bytes()?);
                let text = self.text(length as usize)?;
                self.push(text)?;
            }
            // BINPUT, LONG_BINPUT
            b'q' => {
                let [position] = self.bytes()?;
                self.remember(position.into())?;
            }
            b'r' => {
                let position = u32::from_le_bytes(self.bytes()?);
                self.remember(position as usize)?;
            }
            // BINGET, LONG_BINGET
            b'h' => {
                let [position] = self.bytes()?;
                self.recall(position.into())?;
            }
            b'j' => {
                let position = u32::from_le_bytes(self.bytes()?);
                self.recall(position as usize)?;
            }
            b'(' => {
                if self.marks.len() == MAX_DEPTH {
                    return Err(Unreadable::TooLarge);
                }
                self.marks.push(self.stack.len());
            }
            // SETITEMS, APPENDS: the container is before the mark.
            b'u' | b'e' => self.fill(opcode == b'u', visit)?,
            // TUPLE, TUPLE1 to TUPLE3
            b't' => {
                let start = self.marks.pop().ok_or(Unreadable::Malformed)?;
                self.tuple(start)?;
            }
            0x85..=0x87 => {
                let length = usize::from(opcode - 0x84);
                let start = self.stack.len().checked_sub(length).ok_or(Unreadable::Malformed)?;
                self.tuple(start)?;
            }
            b'.' => return Ok(false),
            other => return Err(Unreadable::OtherInstruction(other)),
        }
        Ok(true)
    }

    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Unreadable> {
        let mut bytes = [0; LENGTH];
        self.source.read_exact(&mut bytes).map_err(|_| Unreadable::Malformed)?;
        Ok(bytes)
    }

    fn push(&mut self, value: Value) -> Result<(), Unreadable> {
        self.steps = self.steps.saturating_add(1);
        if self.stack.len() == MAX_VALUES || self.steps > MAX_STEPS {
            return Err(Unreadable::TooLarge);
        }
        self.stack.push(value);
        Ok(())
    }

    /// A signed number of up to eight bytes.
    fn long(&mut self) -> Result<i64, Unreadable> {
        let [length] = self.bytes()?;
        let mut bytes = [0; 8];
        let filled = bytes.get_mut(..length.into()).ok_or(Unreadable::TooLarge)?;
        self.source.read_exact(filled).map_err(|_| Unreadable::Malformed)?;
        let unused = 64 - 8 * u32::from(length);
        Ok(i64::from_le_bytes(bytes).checked_shl(unused).unwrap_or(0).checked_shr(unused).unwrap_or(0))
    }

    fn text(&mut self, length: usize) -> Result<Value, Unreadable> {
        self.text_bytes = self.text_bytes.saturating_add(length);
        if self.text_bytes > MAX_TEXT_BYTES {
            return Err(Unreadable::TooLarge);
        }
        let mut bytes = vec![0; length];
        self.source.read_exact(&mut bytes).map_err(|_| Unreadable::Malformed)?;
        Ok(Value::Text(String::from_utf8_lossy(&bytes).into()))
    }

    /// Remembers the value on top. Positions rise by one.
    fn remember(&mut self, position: usize) -> Result<(), Unreadable> {
        let last = self.stack.last().ok_or(Unreadable::Malformed)?;
        if let Value::List(items) | Value::Dict(items) = last {
            self.steps = self.steps.saturating_add(items.len());
        }
        if self.steps > MAX_STEPS {
            return Err(Unreadable::TooLarge);
        }
        let value = last.to_remember();
        if position != self.memory.len() {
            return Err(Unreadable::Malformed);
        }
        if position == MAX_VALUES {
            return Err(Unreadable::TooLarge);
        }
        self.memory.push(value);
        Ok(())
    }

    fn recall(&mut self, position: usize) -> Result<(), Unreadable> {
        let value = self.memory.get(position).ok_or(Unreadable::Malformed)?.clone();
        self.push(value)
    }

    /// Makes a tuple of the values from `start` on. A tuple needs no mark, so that it could be nested without end.
    fn tuple(&mut self, start: usize) -> Result<(), Unreadable> {
        let items = self.stack.get(start..).ok_or(Unreadable::Malformed)?;
        if items.iter().any(Value::is_container) {
            return Err(Unreadable::TooLarge);
        }
        let items = self.stack.split_off(start);
        self.push(Value::List(Rc::new(items)))
    }

    fn fill(&mut self, is_dict: bool, visit: &mut dyn FnMut(&[Value], &str, &Value)) -> Result<(), Unreadable> {
        let start = self.marks.pop().filter(|start| *start <= self.stack.len()).ok_or(Unreadable::Malformed)?;
        let items = Rc::new(self.stack.split_off(start));
        let container = self.stack.last_mut().ok_or(Unreadable::Malformed)?;
        match container {
            Value::Dict(known) if is_dict && known.is_empty() => *known = items,
            Value::List(known) if !is_dict && known.is_empty() => *known = items,
            _ => return Err(Unreadable::Malformed),
        }
        // The outermost dictionary and a list in it are open: this is an element of that list.
        if let [outermost, list] = self.marks[..]
            && is_dict
            && let Some([Value::Text(key), Value::List(_)]) =
                list.checked_sub(2).and_then(|at| self.stack.get(at..list))
            && let Some(element) = self.stack.last()
            && let Some(known) = self.stack.get(outermost..list - 2)
        {
            visit(known, key, element);
            if let Some(element) = self.stack.last_mut() {
                *element = Value::Nothing;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Value, Unreadable> {
        read_pickle(&mut &bytes[..], &mut |_, _, _| {})
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn plain_values_are_read() {
        for (bytes, expected) in [
            (&b"\x80\x02K\x07."[..], Value::Number(7)),
            (b"M\x01\x02.", Value::Number(513)),
            (b"J\xff\xff\xff\xff.", Value::Number(-1)),
            (b"\x8a\x00.", Value::Number(0)),
            (b"\x8a\x02\x00\xff.", Value::Number(-256)),
            (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", Value::Number(i64::MIN)),
            (b"N.", Value::Nothing),
            (b"G\x3f\xf0\x00\x00\x00\x00\x00\x00.", Value::Nothing),
            (b"\x88.", Value::Flag(true)),
            (b"\x89.", Value::Flag(false)),
            (b"X\x02\x00\x00\x00ab.", text("ab")),
            (b"X\x01\x00\x00\x00\xff.", text("\u{fffd}")),
            (b").", Value::List(Rc::default())),
            (b"](K\x01K\x02e.", Value::List(vec![Value::Number(1), Value::Number(2)].into())),
            (b"K\x01K\x02\x86.", Value::List(vec![Value::Number(1), Value::Number(2)].into())),
            (b"(K\x01t.", Value::List(vec![Value::Number(1)].into())),
            (b"X\x01\x00\x00\x00aq\x00h\x00\x86.", Value::List(vec![text("a"), text("a")].into())),
        ] {
            assert_eq!(read(bytes), Ok(expected), "{bytes:?}");
        }
        let dict = read(b"}(X\x01\x00\x00\x00aq\x00K\x01u.").unwrap();
        assert_eq!((dict.get("a"), dict.get("b")), (Some(&Value::Number(1)), None));
    }

    #[test]
    fn instructions_that_import_or_call_are_refused() {
        // The output of pickle.dumps for an object whose __reduce__ returns (os.system, ("true",)).
        let call = b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.";
        assert_eq!(read(call), Err(Unreadable::OtherInstruction(b'c')));
        for opcode in 0..=u8::MAX {
            if !b"\x80}])N\x88\x89KMJ\x8aGXqrhj(uet\x85\x86\x87.".contains(&opcode) {
                assert_eq!(read(&[opcode]), Err(Unreadable::OtherInstruction(opcode)));
            }
        }
    }

    #[test]
    fn malformed_pickles_are_refused() {
        for bytes in [
            &b""[..],
            b".",
            b"K",
            b"K\x01K\x02.",
            b"(.",
            b"u.",
            b"e.",
            b"t.",
            b"\x85.",
            b"q\x00.",
            b"h\x00.",
            b"K\x01q\x01.",
            b"K\x01(K\x02u.",
            b"](K\x02u.",
            b"}(K\x02e.",
            b"}(K\x01K\x01u(K\x01K\x01u.",
            b"X\x05\x00\x00\x00ab.",
            b"K\x01(](\x85e.",
            b"(](\x86t.",
        ] {
            let result = read(bytes);
            assert!(result.is_err(), "{bytes:?}: {result:?}");
        }
    }

    #[test]
    fn limits_hold() {
        assert_eq!(read(&b"X\xff\xff\xff\xff"[..]), Err(Unreadable::TooLarge));
        assert_eq!(read(&[&b"\x8a\x09"[..], &[1; 9]].concat()), Err(Unreadable::TooLarge));
        assert_eq!(read(&b"](".repeat(MAX_DEPTH + 1)), Err(Unreadable::TooLarge));
        assert_eq!(read(&b"N".repeat(MAX_VALUES + 1)), Err(Unreadable::TooLarge));
        assert_eq!(read(b"N\x85\x85."), Err(Unreadable::TooLarge), "tuples are not nested");
        let lists = [&b"]("[..], &[&b"]("[..], &b"]".repeat(60_000), b"e"].concat().repeat(100), b"e."].concat();
        assert_eq!(read(&lists[..]), Err(Unreadable::TooLarge), "six million lists");
        // A list that contains a remembered list can be nested without end, so that it is not remembered itself.
        let inner = b"](](eq\x00e";
        assert_eq!(read(&[&inner[..], b"."].concat()).unwrap().items().len(), 1);
        assert_eq!(read(&[b"](", &inner[..], b"q\x01h\x01h\x00e."].concat()).unwrap().items()[1], Value::Nothing);
    }

    #[test]
    fn elements_of_a_list_in_the_outermost_dictionary_are_visited() {
        let bytes =
            b"}(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00b](}(X\x01\x00\x00\x00cK\x02u}(X\x01\x00\x00\x00cK\x03ueu.";
        let mut visited = Vec::new();
        let value = read_pickle(&mut &bytes[..], &mut |known, key, element| {
            assert_eq!(known, [text("a"), Value::Number(1)]);
            visited.push((key.to_owned(), element.get("c").and_then(Value::number)));
        });
        assert_eq!(visited, [("b".to_owned(), Some(2)), ("b".to_owned(), Some(3))]);
        assert_eq!(value.unwrap().get("b").unwrap().items(), [Value::Nothing, Value::Nothing]);
    }
}
