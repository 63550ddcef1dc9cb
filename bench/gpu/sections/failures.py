"""A hundred programs, every third of which breaks the device in one of nine ways, each followed by a healthy one.

What must hold: each ends as it should, none is noticed by the next, and when all is over the device is as before.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import device
from harness import Bench, Server, call, outcome_of, source, value_of, wait_until
from kcoral import Client, Program
from processes import descendants
from report import Report

SECONDS = 120

PROGRAMS = 100
CLIENTS = 4

# How programs break, and how that must read. The call is the instruction with index 4: driver.py, the cubin, the
# module and its function come before it.
BREAKING = {
    "device_assert": "runtime in 4",
    "infinite_kernel": "HTTP 504 timeout",
    "illegal_address": "runtime in 4",
    "leaked_streams": "COMPLETED",
    "out_of_resources": "runtime in 4",
    "child_holds_device": "COMPLETED",
    "out_of_memory": "runtime in 4",
    "exit_during_kernel": "runtime in 4",
    "kill_during_kernel": "runtime in 4",
}
_WORDS = {
    "device_assert": "assert",
    "illegal_address": "illegal",
    "out_of_resources": "OUT_OF_RESOURCES",
    "out_of_memory": "out of memory",
    "exit_during_kernel": "3",
    "kill_during_kernel": "SIGKILL",
}
_HEALTHY_SUM = 1024 * 1025 / 2
_SETTLE_SECONDS = 20.0
_TOLERANCE_MIB = 64.0
_TIMEOUT_SECONDS = {"infinite_kernel": 3.0}
_TIMEOUT_SECONDS_OTHERS = 60.0


def run(bench: Bench, report: Report) -> None:
    before_mib = device.used_mib(0)
    before_pids = device.process_ids(0)
    with bench.server("failures") as server, server.client() as client:
        cubin = bench.compile_kernels(client)
        value_of(client, _program("healthy", cubin))
        baseline_mib = _settled_mib()
        _run_all(client, cubin, report)
        _check_messages(client, cubin, report)
        _check_while_serving(server, baseline_mib, report)
    _check_after_the_server(before_mib, before_pids, report)


def _program(name: str, cubin: bytes) -> Program:
    return call(source("breaking.py"), name, cubin, files={"driver.py": source("driver.py").encode()})


def _run_all(client: Client, cubin: bytes, report: Report) -> None:
    ways = list(BREAKING)
    names = [ways[i // 3 % len(ways)] if i % 3 == 0 else "healthy" for i in range(PROGRAMS)]

    def run_one(name: str) -> tuple[str, str, str]:
        timeout = _TIMEOUT_SECONDS.get(name, _TIMEOUT_SECONDS_OTHERS)
        outcome = outcome_of(client, _program(name, cubin), timeout_seconds=timeout)
        return name, outcome, _health(client, cubin)

    begin = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        ran = list(pool.map(run_one, names))
    report.figure("programs and follow-ups", time.monotonic() - begin, "s")
    wrong = Counter((name, outcome) for name, outcome, _ in ran if outcome != BREAKING.get(name, "COMPLETED"))
    sick = Counter((name, after) for name, _, after in ran if after != "healthy")
    report.attach("outcomes", ran)
    report.figure("outcomes as they should be", PROGRAMS - wrong.total(), "", at_least=PROGRAMS)
    report.figure("healthy follow-ups", PROGRAMS - sick.total(), "", at_least=PROGRAMS)
    for (name, outcome), count in wrong.items():
        report.note(f"{count} of {name} ended as: {outcome}, not {BREAKING.get(name, 'COMPLETED')}")
    for (name, after), count in sick.items():
        report.note(f"{count} after {name}: {after}")


def _health(client: Client, cubin: bytes) -> str:
    """ "healthy", or what was wrong with a program that should have worked."""
    try:
        value = value_of(client, _program("healthy", cubin), timeout_seconds=_TIMEOUT_SECONDS_OTHERS)
    except Exception as error:
        return str(error)[:500]
    return "healthy" if value == _HEALTHY_SUM else f"computed {value}"


def _check_messages(client: Client, cubin: bytes, report: Report) -> None:
    """The messages name what happened, and the child did hold the device."""
    for name, word in _WORDS.items():
        with report.check(f"the message of {name} says {word!r}"):
            result = client.execute(_program(name, cubin), timeout_seconds=_TIMEOUT_SECONDS_OTHERS)
            assert result.error is not None, result.status
            assert word.lower() in result.error.message.lower(), result.error.message
    with report.check("the child did hold the device"):
        said = value_of(client, _program("child_holds_device", cubin))
        assert said == "[0, 0, 0, 0, 0]", said


def _check_while_serving(server: Server, baseline_mib: float, report: Report) -> None:
    back = wait_until(lambda: device.used_mib(0) <= baseline_mib + _TOLERANCE_MIB, _SETTLE_SECONDS)
    detail = f"{device.used_mib(0):.0f} MiB are in use, {baseline_mib:.0f} before"
    report.expect("device memory is back at its baseline", back, detail)
    alone = wait_until(lambda: device.process_ids(0) <= descendants(server.pid).keys(), _SETTLE_SECONDS)
    strangers = device.process_ids(0) - descendants(server.pid).keys()
    report.expect("only the server's processes are on the device", alone, strangers)
    clean = wait_until(lambda: "Z" not in descendants(server.pid).values(), _SETTLE_SECONDS)
    zombies = [pid for pid, state in descendants(server.pid).items() if state == "Z"]
    report.expect("no zombies", clean, zombies)
    with server.client() as client:
        document = client.health()
    report.expect("every slot is in service", not document.get("quarantined"), document)
    idle = document["load"]["requests_in_progress"] == document["load"]["requests_waiting"] == 0
    report.expect("nothing is in progress", idle, document)


def _check_after_the_server(before_mib: float, before_pids: set[int], report: Report) -> None:
    gone = wait_until(lambda: device.process_ids(0) <= before_pids, _SETTLE_SECONDS)
    report.expect("no process is left on the device", gone, device.process_ids(0) - before_pids)
    back = wait_until(lambda: device.used_mib(0) <= before_mib + _TOLERANCE_MIB, _SETTLE_SECONDS)
    detail = f"{device.used_mib(0):.0f} MiB are in use, {before_mib:.0f} before"
    report.expect("device memory is as before the server", back, detail)


def _settled_mib() -> float:
    """The memory in use once it has stayed the same for two seconds: runtimes that stand by have their contexts."""
    seen = [device.used_mib(0)]

    def is_settled() -> bool:
        seen.append(device.used_mib(0))
        return len(seen) > 40 and max(seen[-40:]) - min(seen[-40:]) < 1

    wait_until(is_settled, _SETTLE_SECONDS)
    return seen[-1]
