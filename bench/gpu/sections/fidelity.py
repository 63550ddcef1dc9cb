"""Whether the service measures what a plain process measures.

Ten kernels are timed by the same code in programs of the service and in plain processes that have the GPU to
themselves, in turns, thirty times: while the other slots compute on the CPU and wait for the lease, then while eight
clients push other GPU programs. Either side has a fresh process for each visit, since a process keeps the place of its
memory on the device, which decides more than what is looked for here (uploads/measured.py, section controls). Who comes
first changes with each visit, so that neither gains by what comes before it. A kernel passes if the medians differ by
at most 0.5 % or one tick of the timer, whichever is more, and the service's 95th percentile is not above the plain
process's by more than that and more than chance.

The tick is 32 ns, as measured on an H200: the time stamps that CUPTI gives for kernels there advance in steps of that.

What the 95th percentiles of thirty medians say depends much on chance, so each comes with how far chance goes
(spread.py). Where they differ for more than that, the section `controls` looks for where it comes from.
"""

from __future__ import annotations

import statistics
import threading
import time

from harness import SLOTS, Bench, Server, call, source
from kcoral import KCoralError, Program
from report import Report
from sides import FreshPlainProcesses, PlainProcesses, Service
from spread import TICK_US, Collected, difference, p95, spread_percent

SECONDS = 400

VISITS = 10  # turns of each side
ROUNDS = 3  # benchmarks of each kernel in a turn
SAMPLES = 6  # benchmarks of a single call in a turn
TOLERANCE = 0.005

_SETTLE_SECONDS = 1.2  # after the others have stopped, for the server to make what stands by
_NEIGHBOUR_SECONDS = 0.5
_WAITED_MS = 200.0


def run(bench: Bench, report: Report) -> None:
    with bench.server("fidelity") as server, server.client() as client:
        cubin = bench.compile_kernels(client)
        plain = FreshPlainProcesses(PlainProcesses(bench, cubin))
        service = Service(client, cubin)
        plain.measure(1, 0)  # Triton compiles
        for name, others in (
            ("beside waiting slots", [Others(server, waiting_program()) for _ in range(SLOTS - 1)]),
            ("beside eight clients", [Others(server, pushing_program(1024 + 512 * i)) for i in range(SLOTS)]),
        ):
            _compare(name, plain, service, others, report)


def _compare(name: str, plain: FreshPlainProcesses, service: Service, others: list[Others], report: Report) -> None:
    alone, served = Collected(), Collected()

    def measure_alone() -> None:
        time.sleep(_SETTLE_SECONDS)
        alone.add(plain.measure(ROUNDS, SAMPLES))

    def measure_served() -> None:
        for each in others:
            each.resume()
        time.sleep(_NEIGHBOUR_SECONDS)
        served.add(service.measure(ROUNDS, SAMPLES))
        for each in others:
            each.pause()
        for each in others:
            each.wait_until_paused()

    for visit in range(VISITS):
        turns = [measure_alone, measure_served]
        for turn in turns if visit % 2 == 0 else reversed(turns):
            turn()
    for each in others:
        each.end()
    report.attach(name, {"plain": alone.raw, "service": served.raw, "lease_wait_ms": service.lease_wait_ms})
    _check_others(name, others, report)
    _print_tables(name, alone, served, report)
    for kernel in alone.kernels:
        _judge(name, kernel, alone, served, report)


def _print_tables(name: str, alone: Collected, served: Collected, report: Report) -> None:
    """For people: what differs, whether that is chance, and whether it is decided once for each process."""
    report.note(f"{name}: plain {alone.surroundings()}")
    report.note(f"{name}: service {served.surroundings()}")
    for title, figure in (("medians", statistics.median), ("95th percentiles", p95)):
        report.note(f"{f'{name}, {title} in us':42} {'plain':>10} {'service':>10}  by [what chance allows]")
        for kernel in alone.kernels:
            values = [figure(side.medians_us(kernel)) for side in (alone, served)]
            by = difference(alone.visits(kernel), served.visits(kernel), figure)
            report.note(f"  {kernel:40} {values[0]:10.3f} {values[1]:10.3f}  {by}")
    report.note(
        f"{f'{name}, spread in %':42} {'plain: between':>15} {'within':>7} {'service: between':>17} {'within':>7}"
    )
    for kernel in alone.kernels:
        plain, service = spread_percent(alone.visits(kernel)), spread_percent(served.visits(kernel))
        report.note(f"  {kernel:40} {plain[0]:15.2f} {plain[1]:7.2f} {service[0]:17.2f} {service[1]:7.2f}")
    report.note(f"{f'{name}, single calls, p95 in us':42} {'plain':>10} {'service':>10}")
    for kernel in alone.kernels:
        plain_us, service_us = (p95(side.single_calls_us(kernel)) for side in (alone, served))
        report.note(f"  {kernel:40} {plain_us:10.3f} {service_us:10.3f}")


def _judge(name: str, kernel: str, alone: Collected, served: Collected, report: Report) -> None:
    plain_us, service_us = (statistics.median(each.medians_us(kernel)) for each in (alone, served))
    detail = f"{plain_us:.3f} us alone, {service_us:.3f} us served; {allowed_us(plain_us):.3f} us are allowed"
    report.expect(f"{name}: {kernel}: medians agree", abs(service_us - plain_us) <= allowed_us(plain_us), detail)
    plain_us, service_us = (p95(each.medians_us(kernel)) for each in (alone, served))
    by = difference(alone.visits(kernel), served.visits(kernel), p95)
    detail = f"{plain_us:.3f} us alone, {service_us:.3f} us served, {by}; {allowed_us(plain_us):.3f} us are allowed"
    is_higher = by.us > allowed_us(plain_us) and by.is_real
    report.expect(f"{name}: {kernel}: 95th percentiles agree", not is_higher, detail)
    stable = alone.is_stable(kernel) and served.is_stable(kernel)
    report.expect(f"{name}: {kernel}: activities are stable", stable, "they are not")


def allowed_us(plain_us: float) -> float:
    """By how much two figures may differ that say the same."""
    return max(TOLERANCE * plain_us, TICK_US) + 1e-6


def _check_others(name: str, others: list[Others], report: Report) -> None:
    """They did run, and did wait while somebody measured."""
    errors = [error for each in others for error in each.errors]
    report.expect(f"{name}: the others' programs completed", not errors, errors[:2])
    waited = sum(1 for each in others for ms in each.lease_wait_ms if ms > _WAITED_MS)
    report.figure(f"{name}: programs that waited for the lease", waited, "", at_least=VISITS * len(others) / 2)


class Others:
    """A client that runs one program again and again, unless it is paused: at first it is."""

    def __init__(self, server: Server, program: Program) -> None:
        self._program = program
        self._client = server.client()
        self._may_run = threading.Event()
        self._is_paused = threading.Event()
        self._ended = False
        self.errors: list[str] = []
        self.lease_wait_ms: list[float] = []
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        self._is_paused.wait()

    def resume(self) -> None:
        """Requires: it is paused."""
        self._is_paused.clear()
        self._may_run.set()

    def pause(self) -> None:
        self._may_run.clear()

    def wait_until_paused(self) -> None:
        self._is_paused.wait()

    def end(self) -> None:
        """Requires: it is paused."""
        self._ended = True
        self._may_run.set()
        self._thread.join()
        self._client.close()

    def _loop(self) -> None:
        while True:
            if not self._may_run.is_set():
                self._is_paused.set()
                self._may_run.wait()
            if self._ended:
                return
            self._run()

    def _run(self) -> None:
        try:
            result = self._client.execute(self._program, timeout_seconds=60)
        except KCoralError as error:
            self.errors.append(str(error))
            time.sleep(0.1)
            return
        if result.error is not None:
            self.errors.append(str(result.error))
        self.lease_wait_ms.append(result.lease_wait_ms)


def waiting_program() -> Program:
    """Computes on the CPU without the lease, then waits for it with a CPU still busy."""
    program = Program()
    module = program.upload(kind="module", source=source("neighbour.py"))
    compute = program.get_function(module=module, name="compute", cpu_only=True)
    rounds = program.run(fn=compute, args=[_NEIGHBOUR_SECONDS])
    program.run(fn=program.get_function(module=module, name="touch"), args=[rounds])
    return program


def pushing_program(size: int) -> Program:
    return call(source("neighbour.py"), "work", size)
