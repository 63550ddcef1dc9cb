"""scripts/count_tests.py adds up reports, and never turns a broken run into a good one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "count_tests.py"

PYTEST = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><error/></testcase>
<testcase name="d"><skipped/></testcase></testsuite></testsuites>"""
CTEST = '<testsuite><testcase name="one" status="run"/><testcase name="two" status="{}">{}</testcase></testsuite>'
GTEST = """<testsuites><testsuite><testcase name="x" status="run" result="completed"/>
<testcase name="y" status="run" result="skipped"><skipped/></testcase>
<testcase name="z" status="notrun" result="suppressed"/></testsuite></testsuites>"""


def count(status, report, *directory):
    done = subprocess.run(
        [sys.executable, SCRIPT, str(status), report, *directory],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_pytest(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(PYTEST)
    assert count(1, report) == "1 2 1"


def test_ctest_with_the_tests_inside(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(CTEST.format("run", ""))
    assert count(0, report, tmp_path) == "2 0 0"
    (tmp_path / "two.xml").write_text(GTEST)
    assert count(0, report, tmp_path) == "2 0 2"


def test_a_binary_that_fails_without_a_failed_test(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(CTEST.format("fail", "<failure/>"))
    (tmp_path / "two.xml").write_text(GTEST)
    assert count(8, report, tmp_path) == "2 1 2"
    (tmp_path / "two.xml").unlink()
    assert count(8, report, tmp_path) == "1 1 0"


def test_a_binary_that_is_missing(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(CTEST.format("notrun", '<skipped message="Unable to find executable"/>'))
    assert count(8, report, tmp_path) == "1 1 0"
    report.write_text(CTEST.format("notrun", '<skipped message="SKIP_RETURN_CODE=77"/>'))
    assert count(0, report, tmp_path) == "1 0 1"


def test_a_binary_without_tests(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text(CTEST.format("run", ""))
    (tmp_path / "two.xml").write_text("<testsuites/>")
    assert count(0, report, tmp_path) == "1 1 0"


@pytest.mark.parametrize("text", [None, "", "<testsuite", "<testsuite/>"])
def test_a_runner_that_ran_nothing(tmp_path, text):
    report = tmp_path / "r.xml"
    if text is not None:
        report.write_text(text)
    assert count(0, report) == "0 1 0"


def test_a_runner_that_failed_without_a_failed_test(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text('<testsuite><testcase name="a"/></testsuite>')
    assert count(0, report) == "1 0 0"
    assert count(2, report) == "1 1 0"


def test_a_runner_that_skipped_all(tmp_path):
    report = tmp_path / "r.xml"
    report.write_text('<testsuite><testcase name="a"><skipped/></testcase></testsuite>')
    assert count(0, report) == "0 1 1"
