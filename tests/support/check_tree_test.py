#!/usr/bin/env python3
"""tools/check_tree.py must find what it is there to find, and leave good code alone."""

import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_tree  # noqa: E402  (found through the path above)


class Tree:
    """A source tree of one file."""

    def __init__(self, name, text):
        self.folder = tempfile.TemporaryDirectory(prefix="ringway-tree.")
        self.root = pathlib.Path(self.folder.name)
        path = self.root / "src" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def __enter__(self):
        return self.root

    def __exit__(self, *_):
        self.folder.cleanup()


class IncludeDirection(unittest.TestCase):
    def found(self, name, text):
        with Tree(name, text) as root:
            return check_tree.check_includes(root)

    def test_earlier_folder_and_own_folder_are_accepted(self):
        self.assertEqual(self.found("ring/a.hpp", '#include <vector>\n#include "ring/b.hpp"\n#include "guest/c.hpp"\n'), [])

    def test_later_folder_is_refused_with_its_line(self):
        found = self.found("ring/a.hpp", '\n#include "device/b.hpp"\n')
        self.assertEqual(len(found), 1)
        self.assertIn("a.hpp:2:", found[0])

    def test_neighbour_on_the_same_line_is_refused(self):
        self.assertEqual(len(self.found("loop/a.cpp", '#include "ring/b.hpp"\n')), 1)

    def test_nested_folder_counts_as_its_stage(self):
        self.assertEqual(len(self.found("backend/blk/a.cpp", '#include "completion/b.hpp"\n')), 1)
        self.assertEqual(self.found("backend/blk/a.cpp", '#include "request/b.hpp"\n#include "backend/blk/c.hpp"\n'), [])

    def test_policy_includes_only_base(self):
        self.assertEqual(self.found("policy/a.hpp", '#include "base/time.hpp"\n'), [])
        self.assertEqual(len(self.found("policy/a.hpp", '#include "metrics/counter.hpp"\n')), 1)

    def test_unknown_folder_is_refused(self):
        self.assertEqual(len(self.found("misc/a.hpp", "")), 1)

    def test_relative_include_is_refused(self):
        self.assertEqual(len(self.found("ring/a.cpp", '#include "../device/b.hpp"\n')), 1)
        self.assertEqual(len(self.found("ring/a.cpp", '#include "b.hpp"\n')), 1)

    def test_a_test_may_include_what_drives_its_folder(self):
        self.assertEqual(self.found("vhost_user/a_test.cpp", '#include "driver/b.hpp"\n'), [])


class ClockBan(unittest.TestCase):
    def found(self, name, text):
        with Tree(name, text) as root:
            return check_tree.check_clocks(root)

    def test_each_way_to_read_a_clock_is_found(self):
        for call in ("clock_gettime(CLOCK_MONOTONIC, &ts)", "std::chrono::steady_clock::now()", "system_clock::now()",
                     "gettimeofday(&tv, nullptr)", "__rdtsc()", "__builtin_ia32_rdtscp(&cpu)", "time(nullptr)", "::time(0)",
                     "std::chrono::high_resolution_clock::now()"):
            with self.subTest(call):
                self.assertEqual(len(self.found("device/a.cpp", f"auto x = {call};\n")), 1)

    def test_tests_are_no_exception(self):
        self.assertEqual(len(self.found("device/a_test.cpp", "auto x = std::chrono::steady_clock::now();")), 1)

    def test_the_readers_may(self):
        self.assertEqual(self.found("loop/clock.cpp", "clock_gettime(CLOCK_MONOTONIC, &ts);"), [])
        self.assertEqual(self.found("trace/stage_clock.hpp", "__rdtsc();"), [])
        self.assertEqual(len(self.found("loop/clock_test.cpp", "clock_gettime(CLOCK_MONOTONIC, &ts);")), 1)

    def test_comments_and_texts_may_name_a_clock(self):
        self.assertEqual(self.found("device/a.cpp", '// clock_gettime(\n/* rdtsc */ auto x = "steady_clock";\n'), [])

    def test_names_that_merely_contain_time_are_left_alone(self):
        self.assertEqual(self.found("device/a.cpp", "run_time(0); Instant time(now); timeout(nullptr);"), [])

    def test_the_line_is_right_after_a_comment_of_several(self):
        found = self.found("device/a.cpp", "/* one\ntwo */\nauto x = __rdtsc();\n")
        self.assertIn("a.cpp:3:", found[0])


if __name__ == "__main__":
    unittest.main()
