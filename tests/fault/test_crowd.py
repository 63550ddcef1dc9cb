"""Submitters, pollers and cancellers crowd on one server: a short run of `crowd_minute.py`, which says what must hold.

KCORAL_CROWD_SECONDS=60 is the full run, and KCORAL_CROWD_SEED repeats the choices of one.
"""

from __future__ import annotations

import os
import random

from crowd_minute import check, crowd_minute, show

SECONDS = float(os.environ.get("KCORAL_CROWD_SECONDS", "6"))
SEED = int(os.environ.get("KCORAL_CROWD_SEED", random.SystemRandom().randrange(10**6)))


def test_nobody_in_a_crowd_is_forgotten_and_nothing_runs_twice():
    print(f"\n{SECONDS:g} s, KCORAL_CROWD_SEED={SEED}, load {os.getloadavg()[0]:.1f} before")
    report = crowd_minute(SECONDS, SEED)
    show(report, SECONDS)
    assert report.woken_ms and report.states["cancelled"] and report.states["completed"]
    check(report)
