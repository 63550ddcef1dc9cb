"""Adds up the reports of a test runner and prints "PASSED FAILED SKIPPED".

Usage: count_tests.py STATUS REPORT.xml [DIRECTORY]

STATUS is the runner's exit code, REPORT.xml its JUnit report. DIRECTORY has the GoogleTest report of each binary that
CTest ran, where there is one: then that binary's own tests are counted. What failed without a failed test (a crash, a
leak that a sanitizer found at the end, a runner that broke) counts as one failure, and so does what should have run and
did not: a binary that is missing or has no tests, a runner that found none or skipped all.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple


class Counts(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def of_case(case: ElementTree.Element) -> Counts:
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return Counts(failed=1)
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return Counts(skipped=1)
    return Counts(passed=1)


def is_missing(case: ElementTree.Element) -> bool:
    """Whether CTest could not start the binary. It says so in the words of a test that chose to be skipped."""
    skipped = case.find("skipped")
    return skipped is not None and not skipped.get("message", "").startswith("SKIP_")


def of_report(path: Path) -> Counts:
    counts = Counts()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        counts = counts.plus(of_case(case))
    return counts


def of_ctest(path: Path, directory: Path) -> Counts:
    counts = Counts()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        whole = Counts(failed=1) if is_missing(case) else of_case(case)
        report = directory / f"{case.get('name')}.xml"
        own = of_report(report) if report.is_file() else whole
        counts = counts.plus(own)
        if not own.failed and (whole.failed or own == Counts()):
            counts = counts.plus(Counts(failed=1))
    return counts


def main() -> None:
    status, report, *directory = sys.argv[1:]
    try:
        counts = of_ctest(Path(report), Path(directory[0])) if directory else of_report(Path(report))
    except (OSError, ElementTree.ParseError):
        counts = Counts()
    nothing_ran = counts.passed + counts.failed == 0
    if not counts.failed and (status != "0" or nothing_ran):
        counts = counts.plus(Counts(failed=1))
    print(*counts)


if __name__ == "__main__":
    main()
