"""Whether the service measures what a plain process measures.

Ten kernels are timed by the same code in a program of the service and in a plain process that has the GPU to itself,
in turns, thirty times: while the other slots compute on the CPU and wait for the lease, then while eight clients push
other GPU programs. A kernel passes if the medians differ by at most 0.5 % or one tick of the timer.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from harness import HERE, SLOTS, UPLOADS, Bench, Server, call, source
from kcoral import Client, KCoralError, Program, ReturnedFolder
from load import quantile
from report import Report

SECONDS = 330
GPUS = 1

VISITS = 10  # turns of each side
ROUNDS = 3  # benchmarks of each kernel in a turn
SAMPLES = 6  # benchmarks of a single call in a turn
TOLERANCE = 0.005

_SETTLE_SECONDS = 1.2  # after the others have stopped, for the server to make what stands by
_TICK_NS_MAX = 1024  # what is taken for a tick, rather than for chance
_NEIGHBOUR_SECONDS = 0.5
_WAITED_MS = 200.0

Times = dict[str, dict[str, Any]]


def run(bench: Bench, report: Report) -> None:
    with bench.server("fidelity") as server, server.client() as client:
        cubin = bench.compile_kernels(client)
        plain = PlainProcess(bench, cubin)
        measurement = Measurement(client, cubin)
        plain.measure(1, 0)
        tick_ns = tick_of(plain.measure(0, 20))
        report.figure("tick of the timer", tick_ns, "ns")
        for name, others in (
            ("beside waiting slots", [Others(server, waiting_program()) for _ in range(SLOTS - 1)]),
            ("beside eight clients", [Others(server, pushing_program(1024 + 512 * i)) for i in range(SLOTS)]),
        ):
            _compare(name, plain, measurement, others, tick_ns, report)
        plain.end()


def _compare(
    name: str, plain: PlainProcess, measurement: Measurement, others: list[Others], tick_ns: float, report: Report
) -> None:
    alone: Times = {}
    served: Times = {}
    for _ in range(VISITS):
        time.sleep(_SETTLE_SECONDS)
        _gather(alone, plain.measure(ROUNDS, SAMPLES))
        for each in others:
            each.resume()
        time.sleep(_NEIGHBOUR_SECONDS)
        _gather(served, measurement.measure(ROUNDS, SAMPLES))
        for each in others:
            each.pause()
        for each in others:
            each.wait_until_paused()
    for each in others:
        each.end()
    report.attach(name, {"plain": alone, "service": served, "lease_wait_ms": measurement.lease_wait_ms})
    _check_others(name, others, report)
    report.note(
        f"{name + ', medians in us':34} {'plain':>10} {'service':>10} {'by':>8}  p95 {'plain':>10} {'service':>10}"
    )
    for kernel in alone:
        _judge(name, kernel, alone[kernel], served[kernel], tick_ns, report)


def _judge(
    name: str, kernel: str, alone: dict[str, Any], served: dict[str, Any], tick_ns: float, report: Report
) -> None:
    plain_us, service_us = (1e3 * statistics.median(each["medians"]) for each in (alone, served))
    plain_p95, service_p95 = (1e3 * quantile(each["medians"], 0.95) for each in (alone, served))
    plain_call, service_call = (1e3 * quantile(each["samples"], 0.95) for each in (alone, served))
    by = 100 * (service_us / plain_us - 1)
    report.note(
        f"  {kernel:32} {plain_us:10.3f} {service_us:10.3f} {by:+7.2f}%      {plain_p95:10.3f} {service_p95:10.3f}"
        f"   of single calls {plain_call:.3f} {service_call:.3f}"
    )
    allowed = max(TOLERANCE * plain_us, tick_ns / 1e3) + 1e-6
    detail = f"{plain_us:.3f} us alone, {service_us:.3f} us served; {allowed:.3f} us are allowed"
    report.expect(f"{name}: {kernel}: medians agree", abs(service_us - plain_us) <= allowed, detail)
    allowed = max(TOLERANCE * plain_p95, tick_ns / 1e3) + 1e-6
    detail = f"{plain_p95:.3f} us alone, {service_p95:.3f} us served; {allowed:.3f} us are allowed"
    report.expect(f"{name}: {kernel}: 95th percentiles agree", service_p95 - plain_p95 <= allowed, detail)
    report.expect(f"{name}: {kernel}: activities are stable", alone["stable"] and served["stable"], "they are not")


def _check_others(name: str, others: list[Others], report: Report) -> None:
    """They did run, and did wait while somebody measured."""
    errors = [error for each in others for error in each.errors]
    report.expect(f"{name}: the others' programs completed", not errors, errors[:2])
    waited = sum(1 for each in others for ms in each.lease_wait_ms if ms > _WAITED_MS)
    report.figure(f"{name}: programs that waited for the lease", waited, "", at_least=VISITS * len(others) / 2)


def _gather(all_of: Times, times: Times) -> None:
    for kernel, found in times.items():
        whole = all_of.setdefault(kernel, {"medians": [], "samples": [], "stable": True, "environments": []})
        for series in ("medians", "samples", "environments"):
            whole[series] += found[series]
        whole["stable"] &= found["stable"]


def tick_of(times: Times) -> float:
    """The timer's tick in ns: what all durations of single calls differ by multiples of. 0 if there is none."""
    nanoseconds = [round(ms * 1e6) for found in times.values() for ms in found["samples"]]
    tick = math.gcd(*(each - nanoseconds[0] for each in nanoseconds))
    return float(tick if 1 < tick <= _TICK_NS_MAX else 0)


class PlainProcess:
    """plain.py, with the installation's own timing library."""

    def __init__(self, bench: Bench, cubin: bytes) -> None:
        directory = bench.work / "plain"
        directory.mkdir()
        for name in ("measured.py", "driver.py"):
            shutil.copy(UPLOADS / name, directory)
        (directory / "kernels.cubin").write_bytes(cubin)
        importable = bench.kcoral / "lib" / "kcoral" / "python" / "importable"
        with (bench.out / "plain.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-B", str(HERE / "plain.py"), str(importable)],
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
            )

    def measure(self, rounds: int, samples: int) -> Times:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"rounds": rounds, "samples": samples}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the plain process ended; its last words are in plain.log")
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Measurement:
    """The same as programs of the service, each with a fresh process."""

    def __init__(self, client: Client, cubin: bytes) -> None:
        self._client = client
        self._cubin = cubin
        self.lease_wait_ms: list[float] = []
        # What Triton compiled comes back, and is there for all the others.
        self._files = {"driver.py": source("driver.py").encode()}
        program = call(source("measured.py"), "compile_once", cubin, files=self._files)
        program.return_folder(key="folder", path="triton")
        result = client.execute(program, timeout_seconds=60)
        if result.error is not None:
            raise RuntimeError(f"{result.error}\n{result.error.traceback}")
        folder: ReturnedFolder = result.results["folder"]
        self._files |= {f"triton/{path}": file.data for path, file in folder.files.items()}

    def measure(self, rounds: int, samples: int) -> Times:
        program = call(source("measured.py"), "measure", self._cubin, rounds, samples, files=self._files)
        result = self._client.execute(program, priority=100, timeout_seconds=60)
        if result.error is not None:
            raise RuntimeError(f"{result.error}\n{result.error.traceback}")
        self.lease_wait_ms.append(result.lease_wait_ms)
        times: Times = result.results["value"]
        return times


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
