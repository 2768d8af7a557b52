#!/usr/bin/env python3
"""The scripts of bench/perf that need no large model hold their promises, and say so where one is
broken.

usage: perf_scripts_test.py SOURCE_DIR THIMBLE
"""

import pathlib
import subprocess
import sys
import unittest

PERF = pathlib.Path(sys.argv[1]) / "bench" / "perf"
THIMBLE = pathlib.Path(sys.argv[2]).resolve()
del sys.argv[1:]
sys.dont_write_bytecode = True
sys.path.insert(0, str(PERF))

import start  # noqa: E402  pylint: disable=wrong-import-position

TRACE = """\
7 100.000000 execve("thimble", ["thimble"], 0x1 /* 2 vars */) = 0
7 100.100000 io_uring_setup(5, {flags=0, sq_entries=8}) = 3
7 100.200000 io_uring_enter(3, 1, 0, 0, NULL, 8) = 1
8 100.250000 io_uring_enter(3, 0, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 0
7 100.300000 io_uring_setup(9, {flags=0, sq_entries=16}) = 3
9 100.350000 io_uring_enter(3, 0, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 0
9 100.500000 io_uring_enter(3, 4, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 4
9 100.600000 io_uring_enter(3, 4, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 4
"""


def run(script, *options):
    return subprocess.run(
        [sys.executable, "-B", PERF / script, "--thimble", THIMBLE, *options],
        capture_output=True,
        text=True,
        check=False,
    )


class PerfScriptsTest(unittest.TestCase):
    def expect_held(self, result, promises):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count("held"), promises, result.stdout)

    def test_exactness(self):
        self.expect_held(run("exactness.py"), 4)

    def test_a_broken_promise_is_told_and_ends_with_1(self):
        program = "import exactness; exactness.TOLERANCE = 1e-9; exactness.main()"
        result = subprocess.run(
            [sys.executable, "-B", "-c", program, "--thimble", THIMBLE],
            cwd=PERF,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout.count("BROKEN"), 2, result.stdout)

    def test_soak(self):
        self.expect_held(run("soak.py"), 4)

    def test_a_missing_program_is_named(self):
        result = subprocess.run(
            [sys.executable, "-B", PERF / "exactness.py", "--thimble", "/nowhere/thimble"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nowhere/thimble", result.stderr)

    def test_the_first_reads_of_a_trace(self):
        first, reading = start.first_reads(TRACE)
        self.assertAlmostEqual(first, 0.2)
        self.assertAlmostEqual(reading, 0.5)
        self.assertEqual(start.first_reads(""), (None, None))


if __name__ == "__main__":
    unittest.main()
