#!/usr/bin/env python3
"""What scripts/count_tests.py counts in the files of ctest 3.25.

usage: count_tests_test.py SOURCE_DIR
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

COUNT = pathlib.Path(sys.argv.pop(1)) / "scripts" / "count_tests.py"
SUITE = '<?xml version="1.0"?><testsuite name="x">{}</testsuite>'
PASSED = '<testcase name="a" status="run"><system-out>fine</system-out></testcase>'
FAILED = '<testcase name="b" status="fail"><failure message="Timeout"/></testcase>'
SKIPPED = (
    '<testcase name="c" status="notrun">'
    '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'
)
NOT_FOUND = (
    '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>'
)


class CountTestsTest(unittest.TestCase):
    def count(self, files, *options):
        with tempfile.TemporaryDirectory() as folder:
            for number, cases in enumerate(files):
                path = pathlib.Path(folder) / f"{number}.xml"
                path.write_text(SUITE.format(cases), encoding="utf-8")
            run = subprocess.run(
                [sys.executable, COUNT, folder, *options],
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertEqual(run.stderr, "")
        return run.stdout, run.returncode

    def test_sums_all_files(self):
        self.assertEqual(self.count([PASSED * 2, PASSED]), ("3 passed, 0 failed\n", 0))

    def test_skips_are_no_passes(self):
        self.assertEqual(
            self.count([PASSED + SKIPPED * 2]), ("1 passed, 0 failed, 2 skipped\n", 0)
        )

    def test_failure(self):
        self.assertEqual(self.count([PASSED + FAILED]), ("1 passed, 1 failed\n", 1))

    def test_a_test_that_could_not_start_failed(self):
        self.assertEqual(self.count([PASSED + NOT_FOUND]), ("1 passed, 1 failed\n", 1))

    def test_a_check_that_failed_before_any_test(self):
        self.assertEqual(self.count([], "--run-failed"), ("0 passed, 1 failed\n", 1))

    def test_a_failed_test_is_not_counted_twice(self):
        self.assertEqual(self.count([FAILED], "--run-failed"), ("0 passed, 1 failed\n", 1))


if __name__ == "__main__":
    unittest.main()
