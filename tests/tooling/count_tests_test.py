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


SHARD = '<testcase name="io/all-1-of-4" status="{}"/>'
GOOGLE = '<?xml version="1.0"?><testsuites><testsuite name="x">{}</testsuite></testsuites>'
GOOGLE_PASSED = '<testcase name="a" status="run" result="completed"/>'
GOOGLE_FAILED = (
    '<testcase name="b" status="run" result="completed">'
    '<failure message="1"/><failure message="2"/></testcase>'
)
GOOGLE_SKIPPED = '<testcase name="c" status="run" result="skipped"><skipped/></testcase>'
GOOGLE_DISABLED = '<testcase name="d" status="notrun" result="suppressed"/>'


class CountTestsTest(unittest.TestCase):
    def count(self, files, *options, shard=None):
        with tempfile.TemporaryDirectory() as folder:
            if shard is not None:
                path = pathlib.Path(folder) / "0" / "io" / "all-1-of-4.xml"
                path.parent.mkdir(parents=True)
                path.write_text(shard, encoding="utf-8")
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

    def test_a_shard_counts_as_the_tests_that_it_ran(self):
        cases = GOOGLE_PASSED * 5 + GOOGLE_SKIPPED + GOOGLE_DISABLED
        self.assertEqual(
            self.count([PASSED + SHARD.format("run")], shard=GOOGLE.format(cases)),
            ("6 passed, 0 failed, 2 skipped\n", 0),
        )

    def test_failures_in_a_shard_are_counted_by_test(self):
        cases = GOOGLE_PASSED + GOOGLE_FAILED
        self.assertEqual(
            self.count([SHARD.format("fail")], shard=GOOGLE.format(cases)),
            ("1 passed, 1 failed\n", 1),
        )

    def test_a_shard_that_failed_after_its_tests_is_a_failure(self):
        self.assertEqual(
            self.count([SHARD.format("fail")], shard=GOOGLE.format(GOOGLE_PASSED)),
            ("1 passed, 1 failed\n", 1),
        )

    def test_a_shard_without_a_whole_file_is_a_failure(self):
        for status in ("run", "fail"):
            for text in (None, "", GOOGLE[:40]):
                self.assertEqual(
                    self.count([SHARD.format(status)], shard=text), ("0 passed, 1 failed\n", 1)
                )


if __name__ == "__main__":
    unittest.main()
