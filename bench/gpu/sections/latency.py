"""What a trivial program costs: 4 KiB tensors in and out, the content cached, on fresh processes and on reused ones."""

from __future__ import annotations

import time

import numpy as np

from harness import Bench, Server, call, source, value_of
from load import record, request_bytes, run_load
from report import Report

SECONDS = 170

CLIENTS = 8
PACED_SECONDS = 40.0
SUSTAINED_SECONDS = 60.0
ONE_CLIENT_SECONDS = 5.0
EIGHT_CLIENTS_SECONDS = 10.0


def run(bench: Bench, report: Report) -> None:
    with bench.server("latency-fresh") as server:
        request = _warm_request(server, runs=4)
        _measure_paced(server, request, report)
        _measure_sustained(server, request, report)
    with bench.server("latency-reused", runs_per_process=0) as server:
        # Every process gets its context and its first addition, which loads the kernel.
        request = _warm_request(server, runs=4)
        run_load(server.port, request, clients=CLIENTS, seconds=3.0)
        _measure_reused(server, request, report)


def _warm_request(server: Server, runs: int) -> bytes:
    """The request, once the server holds its tensor and has run it a few times."""
    values = np.arange(1024, dtype=np.float32)
    program = call(source("trivial.py"), "add_one", values)
    with server.client() as client:
        for _ in range(runs):
            np.testing.assert_array_equal(value_of(client, program), values + 1)
    return request_bytes(program)


def _measure_paced(server: Server, request: bytes, report: Report) -> None:
    time.sleep(1.0)
    series = run_load(server.port, request, clients=1, seconds=PACED_SECONDS, per_second=1.0)
    if record(report, "fresh, one a second", series):
        report.figure("fresh, one a second, p50", series.quantile(0.5), "ms", below=25)
        report.figure("fresh, one a second, p99", series.quantile(0.99), "ms", below=400)


def _measure_sustained(server: Server, request: bytes, report: Report) -> None:
    series = run_load(server.port, request, clients=CLIENTS, seconds=SUSTAINED_SECONDS)
    if record(report, f"fresh, {CLIENTS} clients", series):
        report.figure(f"fresh, {CLIENTS} clients for a minute", series.per_second(), "/s", at_least=4)
        report.figure(f"fresh, {CLIENTS} clients, p50", series.quantile(0.5), "ms")
        report.figure(f"fresh, {CLIENTS} clients, p99", series.quantile(0.99), "ms")


def _measure_reused(server: Server, request: bytes, report: Report) -> None:
    series = run_load(server.port, request, clients=1, seconds=ONE_CLIENT_SECONDS)
    if record(report, "reused, 1 client", series):
        report.figure("reused, 1 client, p50", series.quantile(0.5), "ms", below=3)
        report.figure("reused, 1 client, p99", series.quantile(0.99), "ms")
    series = run_load(server.port, request, clients=CLIENTS, seconds=EIGHT_CLIENTS_SECONDS)
    if record(report, f"reused, {CLIENTS} clients", series):
        report.figure(f"reused, {CLIENTS} clients", series.per_second(), "/s", at_least=800)
        report.figure(f"reused, {CLIENTS} clients, p50", series.quantile(0.5), "ms")
        report.figure(f"reused, {CLIENTS} clients, p99", series.quantile(0.99), "ms")
