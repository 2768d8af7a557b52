#!/usr/bin/env python3
"""The chat at a terminal, which is a pseudo-terminal here.

usage: chat_terminal_test.py PROGRAM
"""

import os
import pty
import select
import signal
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv.pop(1)
DEADLINE_S = 60


class Terminal:
    """The program at the other end of a pseudo-terminal."""

    def __init__(self, *arguments):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="")
            os.environ.pop("LANG", None)
            # Whoever runs the tests may ignore it, and a child would inherit that.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.execv(PROGRAM, [PROGRAM, *arguments])

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self):
        """What came, empty at the end."""
        if not select.select([self.fd], [], [], DEADLINE_S)[0]:
            raise AssertionError(f"nothing came, after {self.seen[-2000:]!r}")
        try:
            return os.read(self.fd, 65536).decode(errors="replace")
        except OSError:
            return ""

    def until(self, text):
        """Reads until `text` came, and returns what came up to its end."""
        while text not in self.seen:
            more = self.read()
            if not more:
                raise AssertionError(f"ended without {text!r}: {self.seen[-2000:]!r}")
            self.seen += more
        end = self.seen.index(text) + len(text)
        before, self.seen = self.seen[:end], self.seen[end:]
        return before

    def end(self):
        """The exit status."""
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def chat(*arguments):
    length = [] if "-n" in arguments else ["-n", "8"]
    return Terminal("chat", "-t", "1", "--effort", "off", *length, *arguments)


class ChatTerminalTest(unittest.TestCase):
    def test_a_paste_is_one_message(self):
        terminal = chat()
        terminal.until("\x1b[?2004h")
        terminal.type("\x1b[200~one\rtwo\r/exit\rth\u00e9 end\r\x1b[201~")
        terminal.until("\u00e9 end")
        terminal.type("\r")
        terminal.until("\x1b[?2004l")
        terminal.until("\x1b[?2004h")
        terminal.type("/stats\r")
        terminal.until("in 1 turns")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)

    def test_a_long_paste_is_one_message(self):
        terminal = chat("-c", "2000")
        terminal.until("\x1b[?2004h")
        terminal.type("\x1b[200~" + "a line of many\r" * 100 + "the end\x1b[201~")
        terminal.until("the end")
        terminal.type("\r")
        terminal.until("\x1b[?2004l")
        terminal.until("\x1b[?2004h")
        terminal.type("/stats\r")
        terminal.until("in 1 turns")
        terminal.until("\x1b[?2004h")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_lines_typed_ahead_are_messages_of_their_own(self):
        terminal = chat()
        terminal.until("\x1b[?2004h")
        terminal.type("Hi\rHo\r/stats\r/exit\r")
        terminal.until("in 2 turns")
        self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_at_the_prompt_drops_the_line(self):
        terminal = chat()
        terminal.until("\x1b[?2004h")
        terminal.type("never said")
        terminal.until("never said")
        terminal.type("\x03")
        terminal.until("^C")
        terminal.type("/stats\r")
        terminal.until("in 0 turns")
        terminal.until("\x1b[?2004h")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_a_resumed_conversation_shows_its_last_turns(self):
        with tempfile.TemporaryDirectory() as folder:
            session = os.path.join(folder, "session")
            terminal = chat("--session", session)
            for i in range(5):
                terminal.until("] > ")
                terminal.type(f"message {i}\r")
            terminal.until("] > ")
            terminal.type("/exit\r")
            self.assertEqual(terminal.end(), 0)
            terminal = chat("--session", session)
            shown = terminal.until("/help")
            for i in range(5):
                self.assertEqual(f"> message {i}" in shown, i >= 2, shown)
            self.assertIn("/continue", shown)
            terminal.type("/continue\r/exit\r")
            self.assertEqual(terminal.end(), 0)

    def test_a_lost_connection_at_the_prompt_ends_it(self):
        terminal = chat()
        terminal.until("\x1b[?2004h")
        os.kill(terminal.pid, signal.SIGHUP)
        terminal.until("\x1b[?2004l")
        self.assertEqual(terminal.end(), 130)

    def test_a_lost_terminal_costs_no_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            session = os.path.join(folder, "session")
            terminal = chat("-n", "1900", "--session", session)
            terminal.until("] > ")
            terminal.type("Tell me all of it.\r")
            terminal.until("Tell me all of it.")
            terminal.until("\x1b[?2004l")
            terminal.read()
            os.close(terminal.fd)
            # 1 where the terminal refuses a write before the signal comes.
            self.assertIn(os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]), (1, 130))
            self.assertTrue(os.path.getsize(session))


if __name__ == "__main__":
    unittest.main()
