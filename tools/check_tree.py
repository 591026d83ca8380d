#!/usr/bin/env python3
"""Two rules about the source that no compiler checks.

  check_tree.py includes [ROOT]   includes point one way along the path of the data (ARCHITECTURE.md)
  check_tree.py clocks [ROOT]     nobody reads a clock but the files that are meant to

Prints one line per violation, in the compilers' form, and ends with 1 if there was any.
"""

import pathlib
import re
import sys

# A file may include from its own folder and from folders on earlier lines, not from others on its own line.
LAYERS = (
    ("base",),
    ("policy", "metrics", "guest"),
    ("loop", "ring", "trace"),
    ("request",),
    ("backend", "completion"),
    ("notify", "vhost_user"),
    ("device", "driver"),
    ("worker",),
    ("control", "bench", "sim"),
    ("cli",),
)
LEVEL = {folder: level for level, folders in enumerate(LAYERS) for folder in folders}

# Policies decide and know nothing of who asks: they may be given to a simulator as they are.
ONLY = {"policy": {"base", "policy"}}

# Where time comes from. Everybody else, tests included, is given an Instant or calls clock_now().
CLOCK_READERS = ("loop/clock.cpp", "trace/")
CLOCK_CALLS = re.compile(
    r"\b(clock_gettime|clock_getres|gettimeofday|timespec_get|ftime"
    r"|(?:steady|system|high_resolution|utc|tai|gps|file)_clock"
    r"|__rdtscp?|_?_?rdtscp?|__builtin_ia32_rdtscp?|__builtin_readcyclecounter)\b"
    r"|\b(?:std::|::)?time\s*\(\s*(?:nullptr|NULL|0|&\w+)\s*\)")

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# Comments and literals are blanked, so that prose may name a clock; line breaks stay, for the line numbers.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


def sources(root):
    return sorted(path for pattern in ("*.hpp", "*.cpp", "*.h", "*.c") for path in (root / "src").rglob(pattern))


def is_test(path):
    return re.search(r"_(test|fuzz|bench)\.cpp$", path.name) is not None


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def check_includes(root):
    found = []
    for path in sources(root):
        # A test may put its folder to use through whatever drives it; what is under test may not.
        if is_test(path):
            continue
        inside = path.relative_to(root / "src")
        folder = inside.parts[0]
        if folder not in LEVEL:
            found.append(f"{path}:1: the folder '{folder}' has no place in the order of includes (tools/check_tree.py)")
            continue
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            target = match.group(1).split("/")[0]
            place = f"{path}:{line_of(text, match.start(1))}"
            if "/" not in match.group(1) or target not in LEVEL:
                found.append(f'{place}: "{match.group(1)}" is not named from src/, e.g. "base/time.hpp"')
            elif target != folder and (LEVEL[target] >= LEVEL[folder] or target not in ONLY.get(folder, LEVEL)):
                found.append(f"{place}: {folder} may not include {target}: includes point from the ring to the programs")
    return found


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def check_clocks(root):
    found = []
    for path in sources(root):
        inside = path.relative_to(root / "src").as_posix()
        if inside.startswith(CLOCK_READERS):
            continue
        text = NOT_CODE.sub(blank, path.read_text())
        for match in CLOCK_CALLS.finditer(text):
            found.append(f"{path}:{line_of(text, match.start())}: reads a clock ({match.group(0)}); take an Instant as an "
                         "argument, or clock_now() of loop/clock.hpp")
    return found


CHECKS = {"includes": check_includes, "clocks": check_clocks}


def main(arguments):
    if len(arguments) not in (1, 2) or arguments[0] not in CHECKS:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(arguments[1]) if len(arguments) == 2 else pathlib.Path(__file__).resolve().parent.parent
    if not sources(root):
        print(f"{root}/src holds no sources", file=sys.stderr)
        return 2
    found = CHECKS[arguments[0]](root)
    print("\n".join(found) if found else f"{arguments[0]}: {len(sources(root))} files, nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
