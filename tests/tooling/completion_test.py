#!/usr/bin/env python3
"""Compares what bash completes with what --help lists, for the program and each of its commands.

usage: completion_test.py SOURCE_DIR THIMBLE
"""

import pathlib
import re
import subprocess
import sys
import unittest

THIMBLE = sys.argv.pop(2)
COMPLETION = pathlib.Path(sys.argv.pop(1)) / "completions" / "thimble.bash"


def help_of(*command):
    return subprocess.run(
        [THIMBLE, *command, "--help"], capture_output=True, text=True, check=True
    ).stdout


def section(text, title):
    """The first word of every entry of a section of a help text, and whether a value follows it."""
    body = text.split(f"\n{title}:\n", 1)[1].split("\n\n", 1)[0]
    return [
        (match.group(1), match.group(2) is not None)
        for match in re.finditer(r"^  (\S+)(?: ([A-Z]\S*))?(?: |$)", body, re.MULTILINE)
    ]


def options_of(*command):
    """Spellings of the options and whether each takes a value: {"-m": True, "--model": True}."""
    return {
        spelling: has_value
        for spellings, has_value in section(help_of(*command), "Options")
        for spelling in spellings.split(",")
    }


def commands():
    return [name for name, _ in section(help_of(), "Subcommands")]


def complete(*words):
    """What bash offers for the last of `words`."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _thimble;'
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run(
        ["bash", "-c", script, "bash", COMPLETION, "thimble", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.split()


class CompletionTest(unittest.TestCase):
    def test_help_is_understood(self):
        self.assertIn("run", commands())
        self.assertTrue(options_of("run")["--model"])
        self.assertFalse(options_of("run")["--out-ids"])

    def test_commands(self):
        self.assertEqual(sorted(complete("")), sorted(commands() + list(options_of())))

    def test_options_of_each_command(self):
        for command in commands():
            with self.subTest(command):
                self.assertEqual(sorted(complete(command, "-")), sorted(options_of(command)))

    def test_no_option_where_a_value_is_due(self):
        for command in commands():
            for option, has_value in options_of(command).items():
                with self.subTest(f"{command} {option}"):
                    self.assertEqual("--help" in complete(command, option, "--h"), not has_value)

    def test_unknown_command(self):
        self.assertEqual(complete("no-such-command", "-"), [])

    def test_folders_of_a_model(self):
        completion = str(COMPLETION)
        folder = str(COMPLETION.parent)
        self.assertEqual(complete("run", "--model", folder[:-1]), [folder])
        self.assertEqual(complete("run", "--model", completion[:-1]), [])
        self.assertEqual(complete("run", "--file", completion[:-1]), [completion])


if __name__ == "__main__":
    unittest.main()
