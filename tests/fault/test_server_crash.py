"""Servers that die at named points keep what they promised: a short run of `server_crash.py`, which says how.

KCORAL_CRASH_ROUNDS=500 is the full run, and KCORAL_CRASH_SEED repeats the choices of one.
"""

from __future__ import annotations

import os
import random

from server_crash import crash

ROUNDS = int(os.environ.get("KCORAL_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("KCORAL_CRASH_SEED", random.SystemRandom().randrange(10**6)))


def test_whatever_point_a_server_dies_at_its_promises_hold():
    print(f"\n{ROUNDS} rounds, KCORAL_CRASH_SEED={SEED}")
    report = crash(ROUNDS, SEED)
    assert report.passed >= set(report.points), "every point is on some way"
    if ROUNDS >= 2 * len(report.points):
        assert {point for point in report.points if report.killed[point]} == set(report.points)
