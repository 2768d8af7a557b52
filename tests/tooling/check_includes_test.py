#!/usr/bin/env python3
"""Plants includes in a copy of a tree and sees what scripts/check_includes.py says of them.

usage: check_includes_test.py SOURCE_DIR
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
CHECK = ROOT / "scripts" / "check_includes.py"


class CheckIncludesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.src = pathlib.Path(folder.name) / "src"
        self.plant("base/error.h", "#include <string>")

    def plant(self, name, *lines):
        path = self.src / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def complaints(self):
        run = subprocess.run(
            [sys.executable, CHECK, self.src], capture_output=True, text=True, check=False
        )
        self.assertEqual(run.returncode, 1 if run.stderr else 0, run.stderr)
        return run.stderr.splitlines()

    def assert_allowed(self, name, *lines):
        self.plant(name, *lines)
        self.assertEqual(self.complaints(), [])

    def assert_forbidden(self, name, line):
        self.plant(name, "#pragma once", line)
        complaints = self.complaints()
        self.assertEqual(len(complaints), 1, complaints)
        self.assertTrue(complaints[0].startswith(f"{self.src / name}:2: "), complaints)

    def test_lower_layers_and_own_folder(self):
        self.assert_allowed("memory/buffer.cc", '#include "memory/buffer.h"')
        self.assert_allowed("engine/engine.h", '#include "residency/plan.h"', '#include "base/a.h"')

    def test_standard_headers_named_like_a_folder(self):
        self.assert_allowed("io/file.cc", "#include <memory>", "#include <sys/stat.h>")

    def test_libraries_of_the_folder(self):
        self.assert_allowed("kernels/kernels.cc", '#include "hwy/highway.h"  // last')
        self.assert_allowed("cli/main.cc", "#include <CLI/CLI.hpp>", "#include <fmt/format.h>")

    def test_one_header_of_a_higher_layer(self):
        self.assert_allowed("model/kda.h", '#include "format/model_config.h"')
        self.assert_forbidden("model/mla.h", '#include "format/tensor_store.h"')

    def test_higher_layer(self):
        self.assert_forbidden("base/bad.h", '#include "memory/buffer.h"')

    def test_higher_layer_in_angle_brackets(self):
        self.assert_forbidden("model/bad.h", "#  include <residency/plan.h>")

    def test_command_line_reaches_no_kernel(self):
        self.assert_forbidden("cli/bad.h", '#include "kernels/kernels.h"')

    def test_library_of_another_folder(self):
        self.assert_forbidden("model/bad.h", '#include "hwy/highway.h"')
        self.assertEqual(len(self.complaints()), 1)

    def test_path_that_hides_the_folder(self):
        self.assert_forbidden("io/bad.h", '#include "../memory/buffer.h"')

    def test_file_without_its_folder(self):
        self.assert_forbidden("io/bad.h", '#include "file.h"')

    def test_macro(self):
        self.assert_forbidden("kernels/bad.h", "#include HWY_TARGET_INCLUDE")

    def test_unknown_folder(self):
        self.plant("network/socket.h", "#include <string>")
        self.assertIn("no layer of this name", self.complaints()[0])

    def test_empty_tree(self):
        (self.src / "base" / "error.h").unlink()
        self.assertIn("no sources here", self.complaints()[0])

    def page_complaints(self, edit):
        """What is said of docs/ARCHITECTURE.md after `edit`, a function of its text."""
        text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
        page = self.src.parent / "ARCHITECTURE.md"
        page.write_text(edit(text), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, CHECK, self.src, page], capture_output=True, text=True, check=False
        )
        self.assertEqual(run.returncode, 1 if run.stderr else 0, run.stderr)
        return run.stderr.splitlines()

    def test_the_page_says_the_same(self):
        self.assertEqual(self.page_complaints(lambda text: text), [])

    def test_a_row_that_differs(self):
        for row in ("| memory | base, io; fmt, libnuma |", "| memory | base |", "| mem | base; fmt, libnuma |", ""):
            complaints = self.page_complaints(
                lambda text, row=row: re.sub(r"\| memory \|.*", row, text)
            )
            self.assertIn("memory: expected the row 'base; fmt, libnuma'", "\n".join(complaints))

    def test_a_row_of_no_folder(self):
        complaints = self.page_complaints(lambda text: text + "\n| network | base |\n")
        self.assertEqual(len(complaints), 1, complaints)
        self.assertIn("network/, which is no layer", complaints[0])


if __name__ == "__main__":
    unittest.main()
