"""A program in a pseudo-terminal, and the terminal functions that the measured programs use."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

COLUMNS, ROWS = 200, 60
# The number of printed characters that the screen keeps.
KEPT_CHARACTERS = 1 << 20

TOKEN = re.compile(r"\x1b\[([0-9;?<=>]*)([@-~])|\x1b[\]P_^][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[()#][A-Za-z0-9]|\x1b.|([\r\n\b\t])|([^\x00-\x1f\x7f]+)",
                   re.DOTALL)

TERMINAL_QUERIES = {("6", "n"): b"\x1b[@R", ("5", "n"): b"\x1b[0n", ("", "c"): b"\x1b[?62;22c", ("0", "c"): b"\x1b[?62;22c",
             (">", "c"): b"\x1b[>1;10;0c", (">", "q"): b"\x1bP>|bench 1\x1b\\"}


class Screen:
    """Cells of text. Ignores colours, wide characters and scroll regions, which no measurement needs."""

    def __init__(self, columns=COLUMNS, rows=ROWS):
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.x = self.y = self.bytes = self.frames = 0
        self.saved = (0, 0)
        # The printed text in pieces, because appending to one long string would copy it each time.
        self.pieces, self.length = [], 0
        self.rest = b""
        # Answers to terminal queries, for which some programs wait.
        self.answers = []

    def feed(self, data):
        self.bytes += len(data)
        self.frames += data.count(b"\x1b[?2026l")
        data = self.rest + data
        # A read can end within a character or a control sequence: keeps that part for the next one.
        cut = len(data)
        escape = data.rfind(b"\x1b", max(0, cut - 32))
        if escape >= 0 and not re.match(rb"\x1b(\[[0-9;?<=>]*[@-~]|[^\[])", data[escape:]):
            cut = escape
        else:
            while cut and len(data) - cut < 3 and data[cut - 1] & 0xC0 == 0x80:
                cut -= 1
            cut = cut - 1 if cut and data[cut - 1] >= 0xC0 else len(data)
        self.rest = data[cut:]
        for numbers, final, control, text in TOKEN.findall(data[:cut].decode("utf-8", "replace")):
            if text:
                self.put(text)
            elif control:
                self.control(control)
            elif final and (numbers, final) in TERMINAL_QUERIES:
                self.answers.append(TERMINAL_QUERIES[numbers, final].replace(b"@", b"%d;%d" % (self.y + 1, self.x + 1)))
            elif final and numbers[:1] not in ("?", "<", "=", ">"):
                self.sequence([int(word) if word else 0 for word in numbers.split(";")], final)

    def keep(self, text):
        self.pieces.append(text)
        self.length += len(text)
        if self.length > 2 * KEPT_CHARACTERS:
            kept = "".join(self.pieces)[-KEPT_CHARACTERS:]
            self.pieces, self.length = [kept], len(kept)

    @property
    def printed(self):
        """The last printed text, whether or not it is still on the screen."""
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]

    def put(self, text):
        self.keep(text)
        while text:
            if self.x >= self.columns:
                self.x = 0
                self.down()
            part = text[:self.columns - self.x]
            self.cells[self.y][self.x:self.x + len(part)] = part
            self.x += len(part)
            text = text[len(part):]

    def control(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.keep("\n")
            self.down()
        elif character == "\b":
            self.x = max(0, self.x - 1)
        else:
            self.x = min(self.columns - 1, self.x + 8 & ~7)

    def down(self):
        if self.y + 1 < self.rows:
            self.y += 1
        else:
            del self.cells[0]
            self.cells.append([" "] * self.columns)

    def sequence(self, numbers, final):
        count = max(1, numbers[0])
        row = self.cells[self.y]
        if final in "Hf":
            self.y = min(self.rows, max(1, numbers[0])) - 1
            self.x = min(self.columns, max(1, (numbers + [1])[1])) - 1
        elif final == "G":
            self.x = min(self.columns, count) - 1
        elif final == "d":
            self.y = min(self.rows, count) - 1
        elif final in "AF":
            self.y = max(0, self.y - count)
        elif final in "BE":
            self.y = min(self.rows - 1, self.y + count)
        elif final in "Ca":
            self.x = min(self.columns - 1, self.x + count)
        elif final == "D":
            self.x = max(0, self.x - count)
        elif final == "J":
            first, last = {0: (self.y + 1, self.rows), 1: (0, self.y)}.get(numbers[0], (0, self.rows))
            for line in range(first, last):
                self.cells[line] = [" "] * self.columns
            if numbers[0] == 0:
                row[self.x:] = [" "] * (self.columns - self.x)
        elif final == "K":
            first, last = {0: (self.x, self.columns), 1: (0, self.x + 1)}.get(numbers[0], (0, self.columns))
            row[first:last] = [" "] * (last - first)
        elif final == "X":
            last = min(self.columns, self.x + count)
            row[self.x:last] = [" "] * (last - self.x)
        elif final == "P":
            row[self.x:] = (row[self.x + count:] + [" "] * self.columns)[:self.columns - self.x]
        elif final == "@":
            row[self.x:] = ([" "] * count + row[self.x:])[:self.columns - self.x]
        elif final == "b":
            self.put((row[self.x - 1] if self.x else " ") * count)
        elif final == "s":
            self.saved = (self.x, self.y)
        elif final == "u":
            self.x, self.y = self.saved

    def text(self):
        return "\n".join("".join(row) for row in self.cells)


class Terminal:
    """Runs a command in a new terminal and process group until `stop`."""

    def __init__(self, command, environment, columns=COLUMNS, rows=ROWS, folder=None):
        self.begun = time.monotonic()
        self.screen = Screen(columns, rows)
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                # Sets the size before the program reads it.
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                if folder:
                    os.chdir(folder)
                os.execve(str(command[0]), [str(word) for word in command], {"TERM": "xterm-256color"} | environment)
            except OSError as error:
                print(f"{command[0]}: {error}", flush=True)
            finally:
                os._exit(127)
        self.ended = False

    def read(self, seconds):
        """Reads available output, waiting at most `seconds`. Returns whether there was any."""
        if self.ended:
            time.sleep(min(seconds, 0.05))
            return False
        if not select.select([self.master], [], [], max(0, seconds))[0]:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            data = b""
        self.ended = not data
        self.screen.feed(data)
        while self.screen.answers and not self.ended:
            os.write(self.master, self.screen.answers.pop(0))
        return bool(data)

    def drain(self, seconds, each=None):
        """Reads for `seconds` seconds, and calls `each` after each read."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.read(min(left, 0.1)) and each:
                each()

    def until(self, condition, seconds):
        """Seconds until the condition holds for the screen, or None."""
        begun = time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0:
            if condition(self.screen):
                return time.monotonic() - begun
            if not self.read(left) and self.ended:
                break
        return None

    def type(self, keys):
        os.write(self.master, keys)

    def stop(self):
        """Ends the process group of the program and waits for the program."""
        end(self.pid)
        os.close(self.master)


def end(pid):
    """Ends a process group by SIGTERM, then SIGKILL, and waits for its leader."""
    for number, timeout in ((signal.SIGTERM, 2), (signal.SIGKILL, 10)):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    # Also ends the rest of the group.
                    try:
                        os.killpg(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    return
            except ChildProcessError:
                return
            time.sleep(0.02)
