"""Large tensors: two of 64 MiB in, whose content the server holds, and one out.

As with small programs, on fresh processes the time is judged at one program a second, and on reused ones back to back:
on fresh ones back to back each also waits until the process before it has left the GPU, which is shown beside it.

Nothing can be answered before it is durable, so the yardstick is measured in the same run: plain RocksDB keeping as
many bytes, from memory to synced. What the store itself takes for them stands beside it. Neither frees what it wrote,
nor does the server: a virtual disk may take freed blocks faster than fresh ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np

from harness import Bench, Server, call, source, value_of
from load import quantile, record, request_bytes, run_load
from report import Report

SECONDS = 75

MIB = 64
ROUNDS = 12
PACED_SECONDS = 15.0
CLOSELY_SECONDS = 6.0
FACTOR = 1.3
ALLOWANCE_MS = 60.0


def run(bench: Bench, report: Report) -> None:
    kept_ms = _keeping_ms(bench, report)
    bound = None if kept_ms is None else FACTOR * kept_ms + ALLOWANCE_MS
    with bench.server("big-fresh") as server:
        request = _warm_request(server)
        _measure(server, request, report, "fresh, one a second", PACED_SECONDS, per_second=1.0, below=bound)
        _measure(server, request, report, "fresh, back to back", CLOSELY_SECONDS)
    with bench.server("big-reused", runs_per_process=0) as server:
        request = _warm_request(server)
        _measure(server, request, report, "reused, back to back", CLOSELY_SECONDS, below=bound)


def _warm_request(server: Server) -> bytes:
    """The request, once the server holds its tensors and has run it."""
    random = np.random.default_rng(1)
    x, y = (random.integers(0, 1 << 31, MIB << 18, dtype=np.int32) for _ in range(2))
    program = call(source("big.py"), "subtract", x, y)
    with server.client() as client:
        np.testing.assert_array_equal(value_of(client, program), x - y)
        value_of(client, program)
    time.sleep(1.0)  # until the processes after them are ready
    return request_bytes(program)


def _measure(
    server: Server,
    request: bytes,
    report: Report,
    name: str,
    seconds: float,
    *,
    per_second: float | None = None,
    below: float | None = None,
) -> None:
    series = run_load(server.port, request, clients=1, seconds=seconds, per_second=per_second)
    if not record(report, name, series):
        return
    report.figure(f"{name}, p50", series.quantile(0.5), "ms", below=below)
    report.figure(f"{name}, max", series.quantile(1), "ms")
    if series.lease_wait_ms:
        report.figure(f"{name}, waiting for the GPU, p50", quantile(series.lease_wait_ms, 0.5), "ms")


def _keeping_ms(bench: Bench, report: Report) -> float | None:
    """The yardstick; without store_bench a plain file stands beside the figure, which is not judged then."""
    if bench.store_bench is None:
        ms = quantile([_write_file_ms(bench.work / "yardstick") for _ in range(ROUNDS)], 0.5)
        report.figure(f"a file of {MIB} MiB, written and synced, p50", ms, "ms")
        report.note("the figures below are not judged: give --store-bench")
        return None
    directory = bench.work / "store-bench"
    command = [str(bench.store_bench), str(directory), "content", str(MIB), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    document = json.loads(done.stdout.splitlines()[-1])  # RocksDB may have had something to say before
    report.attach("store_bench", document)
    plain_ms = float(document["plain"]["p50_ms"])
    report.figure(f"RocksDB keeping {MIB} MiB, synced, p50", plain_ms, "ms")
    report.figure(f"the store keeping {MIB} MiB, synced, p50", document["content"]["p50_ms"], "ms")
    return plain_ms


def _write_file_ms(path: Path) -> float:
    content = os.urandom(MIB << 20)
    begin = time.perf_counter()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fdatasync(file.fileno())
    elapsed_ms = (time.perf_counter() - begin) * 1e3
    path.unlink()
    return elapsed_ms
