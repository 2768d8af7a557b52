#!/usr/bin/env python3
"""What bench/compare makes of its measurements, without the other engine.

usage: compare_scripts_test.py SOURCE_DIR
"""

import argparse
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

BENCH = pathlib.Path(sys.argv[1]) / "bench"
del sys.argv[1:]
sys.dont_write_bytecode = True
sys.path[:0] = [str(BENCH / "compare"), str(BENCH / "perf")]

import compare  # noqa: E402  pylint: disable=wrong-import-position
import fixtures  # noqa: E402  pylint: disable=wrong-import-position
import perf  # noqa: E402  pylint: disable=wrong-import-position


def printed(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*arguments)
    return out.getvalue()


class CompareScriptsTest(unittest.TestCase):
    def test_losses_are_told_as_such(self):
        for name, ours, theirs, told in (
            ("decode", [3, 4, 5], [2, 2, 1], "A is ahead of llama.cpp, 2 times faster"),
            ("decode", [2, 2, 1], [3, 4, 5], "llama.cpp is ahead of A, 2 times faster"),
            ("read", [10], [5], "llama.cpp is ahead of A, 2 times less"),
            ("first token", [1], [3], "A is ahead of llama.cpp, 3 times sooner"),
            ("prompt", [100, 103], [90, 101], "A and llama.cpp differ by no more than the spread"),
        ):
            self.assertEqual(compare.meaning(name, "A", ours, theirs), f"{name}: {told}")

    def test_each_run_of_thimble_is_compared(self):
        results = {name: [{measure: rate for measure in compare.MEASURES}]
                   for name, rate in (("Thimble", 3), ("Thimble, q8", 4), ("llama.cpp", 2))}
        text = printed(compare.report, results)
        self.assertIn("decode: Thimble is ahead of llama.cpp, 1.5 times faster", text)
        self.assertIn("decode: Thimble, q8 is ahead of llama.cpp, 2 times faster", text)

    def test_only_a_rounded_trunk_has_packed_containers(self):
        options = argparse.Namespace(dir=pathlib.Path("d"), trunk="bf16")
        self.assertEqual(list(compare.paths_of(options, 4, 8)[0]), ["Thimble"])
        options.trunk = "q8_0"
        models, target = compare.paths_of(options, 4, 8)
        self.assertEqual(list(map(str, models.values())), ["d/kimi-linear-4-8",
                                                           "d/kimi-linear-4-8-coded",
                                                           "d/kimi-linear-4-8-q8"])
        self.assertEqual(str(target), "d/kimi-linear-4-8-q8_0.gguf")

    def test_an_engine_that_always_failed_is_in_the_table(self):
        ours = {name: 1.0 for name in compare.MEASURES}
        text = printed(compare.report, {"Thimble": [ours], "llama.cpp": []})
        self.assertEqual(text.count("failed"), len(compare.MEASURES))
        self.assertNotIn("ahead", text)

    def test_differences_go_by_position(self):
        expected = [0.0, 4.0, 2.0, 1.0]
        relative, same = fixtures.differences([1.0, 4.0, 1.0, 2.0], expected, 2)
        self.assertEqual((relative, same), ([0.25, 0.25], 1))

    def test_a_command_tells_when_it_first_printed(self):
        run = perf.Command(["sh", "-c", "echo a; sleep 0.3; echo b >&2; echo c; exit 3"])
        self.assertEqual((run.code, run.out, run.err), (3, "a\nc\n", "b\n"))
        self.assertLess(run.first_output_s, 0.25)
        self.assertGreaterEqual(run.seconds, 0.3)
        self.assertGreater(run.peak, 0)

    def test_forgotten_files_stay_as_they_are(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"abc")
            file.flush()
            perf.forget_pages([file.name])
            self.assertEqual(pathlib.Path(file.name).read_bytes(), b"abc")


if __name__ == "__main__":
    unittest.main()
