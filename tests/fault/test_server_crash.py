"""Servers that die at named points keep what they promised: a short run of `server_crash.py`, which says how.

KCORAL_CRASH_ROUNDS=500 is the full run, and KCORAL_CRASH_SEED repeats the choices of one.
"""

from __future__ import annotations

import os
import random

from server_crash import crash  # which finds the harness

from harness import running_server  # noqa: E402

ROUNDS = int(os.environ.get("KCORAL_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("KCORAL_CRASH_SEED", random.SystemRandom().randrange(10**6)))


def test_whatever_point_a_server_dies_at_its_promises_hold():
    print(f"\n{ROUNDS} rounds, KCORAL_CRASH_SEED={SEED}")
    report = crash(ROUNDS, SEED)
    assert report.passed >= set(report.points), "every point is on some way"
    if ROUNDS >= 2 * len(report.points):
        assert {point for point in report.points if report.killed[point]} == set(report.points)


def test_programs_know_nothing_of_it():
    with running_server(environment={"KCORAL_FAILPOINT": "note"}) as server:
        source = "import os\ndef main():\n    return sorted(os.environ)\n"
        assert "KCORAL_FAILPOINT" not in server.run(source).value()
