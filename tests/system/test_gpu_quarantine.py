"""Devices on which something of a program stays: out of use until it is gone, while the others go on.

What a device must be clear of is known within 10 s (schema/limits.h); the tests share that wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
from typing import Iterator

import pytest

from fake_gpus import GpuServer, Pending, gpu_server
from harness import wait_until

STUCK, LEAKING, GOOD = range(3)


@contextlib.contextmanager
def left_behind() -> Iterator[int]:
    """A process where programs live, three pid namespaces below the server's, without an executor above it."""
    family = subprocess.Popen([*["unshare", "--pid", "--fork", "--kill-child"] * 3, "sleep", "infinity"])

    def innermost() -> str:
        pid = str(family.pid)
        for _ in range(3):
            pid = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()
            if not pid:
                return ""
        return pid

    try:
        yield int(wait_until(innermost, "the process is there"))
    finally:
        family.kill()
        family.wait()


@pytest.fixture(scope="module")
def stays():
    with left_behind() as pid:
        yield pid


@pytest.fixture(scope="module")
def waited_for(stays: int):
    """A device that something stays on, and a program that was given to it before and waits."""
    with gpu_server([0], "--workers-per-gpu", "2", "--standby-runtimes", "0") as served:
        holder, word = served.hold()
        served.wait_for_holder(holder)
        pending = served.begin("spin", 0)
        served.wait_for_waiters(1)
        served.gpus.devices[0].processes[stays] = "100"
        served.gpus.tell()
        served.say(word)
        assert holder.value()
        yield served, pending


@pytest.fixture(scope="module")
def served(stays: int, waited_for):  # begun together, as both take their 10 s
    with gpu_server([0, 1, 2], "--workers-per-gpu", "1", "--standby-runtimes", "0") as served:
        holders = [served.hold() for _ in range(3)]
        at = [served.wait_for_holder(each) for each, _ in holders]
        assert sorted(at) == [STUCK, LEAKING, GOOD]
        served.gpus.devices[STUCK].processes[stays] = "100"
        served.gpus.devices[LEAKING].used_mib += 2000
        served.gpus.tell()
        for each, word in holders:
            served.say(word)
            assert each.value(), "the answer waits for nothing"
        yield served


def health_of(served: GpuServer, device: int) -> str:
    return served.look()[device]["health"]


def test_until_it_is_known_nobody_gets_them(served: GpuServer):
    wait_until(lambda: served.holders() == [None, None, None], "the programs have ended")
    assert served.look()[STUCK]["health"] == served.look()[LEAKING]["health"] == "ok"


def test_they_are_shown_with_the_reason(served: GpuServer, stays: int):
    wait_until(lambda: "quarantined" in health_of(served, LEAKING), "memory is missing")
    wait_until(lambda: "quarantined" in health_of(served, STUCK), "a process stays")
    gpus = served.look()
    assert [gpu["health"] for gpu in gpus] == ["quarantined", "quarantined", "ok"]
    assert set(gpus[STUCK]["quarantined"]) == {"since", "reason"} and "quarantined" not in gpus[GOOD]
    assert f"process {stays} still uses it" in gpus[STUCK]["quarantined"]["reason"]
    assert "2000 MiB of its memory are in use" in gpus[LEAKING]["quarantined"]["reason"]


def test_who_waits_for_one_gets_it_when_it_comes_back_soon(waited_for: tuple[GpuServer, Pending]):
    """What becomes of the wait after 30 s: tests/unit/scheduler/leases_test.cc, scripted_lease_test.cc."""
    served, pending = waited_for
    wait_until(lambda: health_of(served, 0) == "quarantined", "a process stays")
    assert served.look()[0]["waiters"] == 1 and not pending.is_answered
    served.gpus.devices[0].processes.clear()
    served.gpus.tell()
    began, ended = pending.value()
    assert began <= ended
    assert health_of(served, 0) == "ok"


def test_health_counts_no_worker_of_theirs(served: GpuServer):
    health = json.loads(served.server.request("GET", "/health").body)
    reasons = [each["reason"] for each in health["quarantined"]]
    assert sorted(reason.split(":")[0] for reason in reasons) == ["GPU 0 is quarantined", "GPU 1 is quarantined"]
    assert health["load"]["request_capacity"] == 2, "the good one's, and that for several"


def test_programs_run_on_the_others(served: GpuServer):
    for _ in range(3):
        node = served.gpus.devices[GOOD].minor
        assert f"nvidia{node}" in served.begin("what_it_sees").value()[2]


def test_one_for_several_waits_and_what_waits_gets_them_back(served: GpuServer):
    pending, word = served.hold(gpu_count=3)
    served.wait_for_waiters(1, STUCK)
    served.gpus.devices[STUCK].processes.clear()
    served.gpus.tell()
    wait_until(lambda: health_of(served, STUCK) == "ok", "the process is gone")
    assert served.holders() == [None, None, None], "one device is still missing"
    served.gpus.devices[LEAKING].used_mib -= 2000
    served.gpus.tell()
    wait_until(lambda: health_of(served, LEAKING) == "ok", "the memory is back")
    wait_until(lambda: served.holders() == [pending.id] * 3, "it has all three")
    served.say(word)
    assert pending.reply().json()["gpu_ids"] == [0, 1, 2]


def test_processes_of_others_are_no_reason(served: GpuServer):
    """Somebody who came after the server's start, beside its programs: they are disturbed, but nothing of ours stays."""
    served.gpus.devices[GOOD].processes[os.getpid()] = "?"
    served.gpus.tell()
    for _ in range(4):
        assert served.begin("spin", 0).value()
    wait_until(lambda: served.holders() == [None] * 3 and not any(g["waiters"] for g in served.look()), "all are free")
    assert [gpu["health"] for gpu in served.look()] == ["ok"] * 3


def test_a_program_that_waits_too_long_is_told():
    with gpu_server(
        [0], "--workers-per-gpu", "2", "--standby-runtimes", "0", "--lease-wait-timeout-seconds", "1"
    ) as served:
        holder, word = served.hold()
        served.wait_for_holder(holder)
        error = served.begin("spin", 0).reply().result().error
        assert error["kind"] == "unavailable" and "--lease-wait-timeout-seconds" in error["message"]
        assert "GET /gpus shows who has the GPU" in error["message"]
        assert served.look()[0]["waiters"] == 0
        served.say(word)
        assert holder.value()
