"""Where a difference between the service and a plain process comes from (section fidelity). Bounds nothing.

Run it by name: it is for a question, not for acceptance. What was asked first: copies of 256 MiB had a 95th percentile
of 129.0 us in the service and 127.9 us in the plain process, with equal medians. Each suspect has a side of its own
that shows it without the others; all of a phase are measured in turns, in an order that changes.

    chance              two plain processes, alike in all (`plain`, `twin`), differ as much; by chance alone one
                        comparison in twenty is marked as one that differs
    place of memory     `fresh` differs from `plain` too: a plain process for each turn, whose memory lies elsewhere
                        each time, where `plain` keeps its first. Medians of its visits then lie further apart than
                        those within a visit. (Pages, and with them channels and TLB, are chosen once for a process.)
    other contexts      `beside idle` differs from `plain`: the same process, while seven more have a context (one,
                        the twin, has one throughout)
    clocks, heat, time  the device's state differs between the sides, or `plain` changes from phase to phase
    the service         what is left: `served` differs from `fresh` beside the same server

The first phase has no server; the second one that nobody else uses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import device
from harness import SLOTS, Bench
from report import Report
from sides import FreshPlainProcesses, PlainProcesses, Service, Side, Times, idle_contexts
from spread import Collected, difference, p95, spread_percent

SECONDS = 420

VISITS = 8  # with four sides each is twice at each place, once in either direction
ROUNDS = 5  # so that a p95 is of forty medians
KERNELS = ("add 1 MiB", "copy 256 MiB", "CUDA C 256 MiB", "GEMM 4096 bf16")

_SETTLE_SECONDS = 1.2  # as in fidelity: the server makes what stands by
_IDLE = SLOTS - 1
_FIGURES = (("median", statistics.median), ("p95", p95))


class BesideIdleContexts:
    """Another side's turns, with contexts of others on the device."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def measure(self, rounds: int, samples: int, names: Sequence[str] | None = None) -> Times:
        with idle_contexts(_IDLE):
            time.sleep(_SETTLE_SECONDS)
            return self._side.measure(rounds, samples, names)


def run(bench: Bench, report: Report) -> None:
    with bench.server("controls-compile") as server, server.client() as client:
        cubin = bench.compile_kernels(client)  # only the server knows for which architecture
    processes = PlainProcesses(bench, cubin)
    plain, twin, fresh = processes.start(), processes.start(), FreshPlainProcesses(processes)
    for each in (plain, twin):
        each.measure(1, 0)
    alone = _measure(
        "without a server",
        {"plain": plain, "twin": twin, "fresh": fresh, "beside idle": BesideIdleContexts(plain)},
        report,
    )
    _tell("without a server", alone, (("plain", "twin"), ("plain", "fresh"), ("plain", "beside idle")), report)
    with bench.server("controls") as server, server.client() as client:
        service = Service(client, cubin)
        served = _measure("beside a server", {"plain": plain, "twin": twin, "fresh": fresh, "served": service}, report)
    pairs = (("plain", "twin"), ("plain", "fresh"), ("fresh", "served"), ("plain", "served"))
    _tell("beside a server", served, pairs, report)
    both = {"before": alone["plain"], "beside a server": served["plain"]}
    _tell("the plain process in both phases", both, (("before", "beside a server"),), report)
    for each in (plain, twin):
        each.end()


def _measure(phase: str, sides: dict[str, Side], report: Report) -> dict[str, Collected]:
    collected = {name: Collected() for name in sides}
    states: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for visit in range(VISITS):
        for name in order_of(list(sides), visit):
            time.sleep(_SETTLE_SECONDS)
            states[name].append(device.state(0))
            collected[name].add(sides[name].measure(ROUNDS, 0, KERNELS))
            states[name].append(device.state(0))
        report.attach(phase, {name: side.raw for name, side in collected.items()})
    report.attach(f"{phase}: the device before and after each turn", states)
    for name, side in collected.items():
        report.note(f"{phase}, {name}: {side.surroundings()}; after turns {_summary(states[name][1::2])}")
    return collected


def order_of(names: list[str], visit: int) -> list[str]:
    """Each comes at each place equally often, and not always after the same one."""
    at = visit % len(names)
    rotated = names[at:] + names[:at]
    return rotated if visit // len(names) % 2 == 0 else rotated[::-1]


def _summary(states: list[dict[str, Any]]) -> str:
    """The median of each fact of the device that is known."""
    facts = {name: [state[name] for state in states if state[name] is not None] for name in states[0]}
    return ", ".join(f"{name} {statistics.median(values):g}" for name, values in facts.items() if values)


def _tell(phase: str, sides: dict[str, Collected], pairs: Sequence[tuple[str, str]], report: Report) -> None:
    report.note(f"{phase}: in us, spread of visits and within visits in %")
    for kernel in KERNELS:
        for name, side in sides.items():
            between, within = spread_percent(side.visits(kernel))
            values = [figure(side.medians_us(kernel)) for _, figure in _FIGURES]
            figures = f"median {values[0]:9.3f}  p95 {values[1]:9.3f}  spread {between:.2f} {within:.2f}"
            report.note(f"  {kernel:16} {name:16} {figures}")
        for first, second in pairs:
            report.note(f"  {kernel:16} {first} to {second}: {_differences(sides[first], sides[second], kernel)}")


def _differences(first: Collected, second: Collected, kernel: str) -> str:
    visits = first.visits(kernel), second.visits(kernel)
    return ", ".join(f"{name} {difference(*visits, figure)}" for name, figure in _FIGURES)
