#!/usr/bin/env python3
"""Prints 'N passed, N failed[, N skipped]' over the JUnit files that ctest wrote into a folder.

One of ctest's tests may stand for many of GoogleTest's, FOLDER/all-1-of-4 in PRESET.xml. What became
of these is then in PRESET/FOLDER/all-1-of-4.xml.

usage: count_tests.py FOLDER [--run-failed]

--run-failed: the run that left these files failed; if no test did, then a check or a build did,
which counts as one failure.
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# ctest's statuses of a test case. One that could not be started is a failure, except that ctest
# gives a skipped one the same status and a <skipped> that tells the reason.
SKIP_REASONS = ("SKIP_REGULAR_EXPRESSION_MATCHED", "SKIP_RETURN_CODE=")


# The name of one that stands for many.
SHARD = re.compile(r".+/all-\d+-of-\d+")


def outcome(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    skipped = case.find("skipped")
    reason = "" if skipped is None else skipped.get("message", "")
    if status == "disabled" or (status == "notrun" and reason.startswith(SKIP_REASONS)):
        return "skipped"
    return "failed"


def google_outcome(case):
    """The same of a test case in GoogleTest's own XML."""
    if case.find("failure") is not None:
        return "failed"
    if case.get("status") != "run" or case.find("skipped") is not None:
        return "skipped"
    return "passed"


def count_shard(path, ctest_outcome):
    """The outcomes in a file of GoogleTest, and a failure where these do not explain ctest's: the
    process was killed, or failed after its tests, or left no file."""
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
        outcomes = [google_outcome(case) for case in cases]
    except (OSError, ElementTree.ParseError):
        return ["failed"]
    if ctest_outcome != "passed" and "failed" not in outcomes:
        outcomes.append("failed")
    return outcomes


def count(folder):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(pathlib.Path(folder).glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = case.get("name", "")
            outcomes = [outcome(case)]
            if SHARD.fullmatch(name):
                outcomes = count_shard(path.with_suffix("") / f"{name}.xml", outcomes[0])
            for one in outcomes:
                counts[one] += 1
    return counts


def closing_line(counts):
    line = f"{counts['passed']} passed, {counts['failed']} failed"
    if counts["skipped"]:
        line += f", {counts['skipped']} skipped"
    return line


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--run-failed", action="store_true")
    arguments = parser.parse_args()
    counts = count(arguments.folder)
    if arguments.run_failed and counts["failed"] == 0:
        counts["failed"] = 1
    print(closing_line(counts))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
