"""Servers that die at named points keep what they promised: a short run of `server_crash.py`, which says how.

KCORAL_CRASH_ROUNDS=500 is the full run, KCORAL_POWER_LOSS_ROUNDS=500 that with losses of power, and KCORAL_CRASH_SEED
repeats the choices of one.
"""

from __future__ import annotations

import os
import random

import pytest
from server_crash import PowerLoss, crash  # which finds the harness

from harness import running_server  # noqa: E402
from told import Violation  # noqa: E402

ROUNDS = int(os.environ.get("KCORAL_CRASH_ROUNDS", "20"))
POWER_LOSS_ROUNDS = int(os.environ.get("KCORAL_POWER_LOSS_ROUNDS", "10"))
LYING_ROUNDS = 15  # one or two are enough, as a rule
SEED = int(os.environ.get("KCORAL_CRASH_SEED", random.SystemRandom().randrange(10**6)))


def test_whatever_point_a_server_dies_at_its_promises_hold():
    print(f"\n{ROUNDS} rounds, KCORAL_CRASH_SEED={SEED}")
    report = crash(ROUNDS, SEED)
    assert report.passed >= set(report.points), "every point is on some way"
    if ROUNDS >= 2 * len(report.points):
        assert {point for point in report.points if report.killed[point]} == set(report.points)


def test_they_hold_when_the_power_goes_too():
    print(f"\n{POWER_LOSS_ROUNDS} rounds, KCORAL_CRASH_SEED={SEED}")
    crash(POWER_LOSS_ROUNDS, SEED, power_loss=PowerLoss(SEED))


LOST_COMMITS = (
    "ran without being admitted|admitted, and lost|answered, and|ended as|ran, and|cancelled, and|two outcomes"
    "|the backup|its audit"
)
LOST_CONTENT = "no outcome: 410|two outcomes|its audit|is amiss"


@pytest.mark.parametrize("lies, found", [("queue.sqlite3-wal", LOST_COMMITS), (".log", LOST_CONTENT)])
def test_a_sync_that_is_left_out_is_found(lies, found):
    """Of commits; of content that is in no table yet. If these were not found, the test before would say little.

    What is found is what such a loss makes of the promises: a server that ended by itself would be a violation too.
    """
    print(f"\nKCORAL_CRASH_SEED={SEED}")
    with pytest.raises(Violation, match=found):
        crash(LYING_ROUNDS, SEED, power_loss=PowerLoss(SEED, lies))


def test_programs_know_nothing_of_it():
    with running_server(environment={"KCORAL_FAILPOINT": "note"}) as server:
        source = "import os\ndef main():\n    return sorted(os.environ)\n"
        assert "KCORAL_FAILPOINT" not in server.run(source).value()
