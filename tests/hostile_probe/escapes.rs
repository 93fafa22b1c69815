//! Texts that attack a terminal, shared by the hostile host and the tests that read the terminal.

/// Every parameter and payload contains 987, which gpufleet never writes.
pub(crate) const ESCAPES: [&str; 18] = [
    "\u{1b}]0;title987\u{7}",
    "\u{1b}]2;title987\u{1b}\\",
    "\u{1b}]52;c;OTg3\u{7}",
    "\u{1b}]8;;http://987\u{1b}\\",
    "\u{1b}]9;987\u{7}",
    "\u{1b}P987q\u{1b}\\",
    "\u{1b}_987\u{1b}\\",
    "\u{1b}[987;987H",
    "\u{1b}[987m",
    "\u{1b}[?987l",
    "\u{1b}c",
    "\u{9b}987m",
    "\u{9d}0;987\u{9c}",
    "\r\n\u{8}\u{7}\t",
    "\u{202e}987\u{2066}",
    "\u{200b}\u{feff}\u{ad}\u{2028}",
    "\u{e0041}\u{fff9}\u{7f}",
    "e\u{301}\u{301}\u{301}\u{301}\u{301}\u{301}",
];
