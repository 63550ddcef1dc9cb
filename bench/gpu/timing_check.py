#!/usr/bin/env python3
"""Checks on real hardware that libkcoral_timing.so times and guards as executor/timing/timing.h promises.

Usage: PYTHON bench/gpu/timing_check.py LIBRARY [NAME...]

LIBRARY is build/PRESET/lib/kcoral/libkcoral_timing.so or an installed one; `python/importable` must lie beside it, as
in a build (target kcoral_runtime_files) or an installation. Needs PyTorch, and compares with Triton's do_bench where
that is installed. No server. One line for each check: PASS, FAIL or SKIP, what it saw; the last line counts. Ends
within 60 s. NAMEs select checks.
"""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from timing_checks import subject
from timing_checks.subject import Skip

DEADLINE_SECONDS = 60
SUBJECTS = ("work", "reports", "guarding", "profilers", "processes")  # in timing_checks/; in this order they run


class OutOfTime(Exception):
    pass


def out_of_time(*_: object) -> None:
    raise OutOfTime("the time is over")


def verdict_of(check: Callable[[], str]) -> tuple[str, str]:
    """PASS, FAIL or SKIP, and what it saw. Raises OutOfTime."""
    try:
        return "PASS", check()
    except Skip as reason:
        return "SKIP", str(reason)
    except OutOfTime:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return "FAIL", f"{where}: {type(error).__name__}: {str(error)[:700]}"


def run(checks: list[Callable[[], str]]) -> dict[str, int]:
    """How many of each verdict there were. What finds no time is not counted, but for the check that it ran out in."""
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for check in checks:
        is_over = False
        try:
            verdict, line = verdict_of(check)
        except OutOfTime as error:
            verdict, line, is_over = "FAIL", str(error), True
        counts[verdict] += 1
        print(f"{verdict} {check.__name__:22} {line}", flush=True)
        if is_over:
            break
    return counts


def main() -> None:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        sys.exit(__doc__)
    subject.set_up(sys.argv[1])
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(DEADLINE_SECONDS)
    for name in SUBJECTS:
        importlib.import_module("timing_checks." + name)
    counts = run([each for each in subject.CHECKS if not sys.argv[2:] or each.__name__ in sys.argv[2:]])
    print("{PASS} passed, {FAIL} failed, {SKIP} skipped".format(**counts))
    sys.exit(1 if counts["FAIL"] or not counts["PASS"] else 0)


if __name__ == "__main__":
    main()
