"""Two GPUs leased together, all or nothing, beside programs that want one."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np

from harness import Bench, call, in_background, source, value_of
from kcoral import Client, Program, ServerError
from report import Report

SECONDS = 120
GPUS = 2

# Multicast over NVLink stays off for whatever a program does: NCCL, PyTorch's symmetric memory, NVSHMEM.
_ENVIRONMENT = ("NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1")
_COUNT = 1 << 22
_SINGLE_CLIENTS = 4


def run(bench: Bench, report: Report) -> None:
    flags = [word for each in _ENVIRONMENT for word in ("--env", each)]
    with bench.server("two_gpus", *flags, gpus=bench.multiple_gpus) as server, server.client() as client:
        _check_devices(client, report)
        _check_reductions(client, report)
        _check_parallel(client, report)
        _check_beside_singles(client, report)


def _program(name: str, *arguments: object) -> Program:
    return call(source("several.py"), name, *arguments, files={"ranks.py": source("ranks.py").encode()})


def _check_devices(client: Client, report: Report) -> None:
    with report.check("/health counts two GPUs"):
        assert client.health()["gpu_count"] == 2, client.health()
    with report.check("gpu_count 2: the devices it sees, gpu_ids in the answer"):
        result = client.execute(_program("visible"), gpu_count=2)
        assert result.completed, result.error
        found = result.results["value"]
        report.attach("visible to a program of two", found)
        assert found["devices"] == 2 and len(found["visible"].split(",")) == 2, found
        assert found["multicast_is_off"] is True, found
        assert result.gpu_count == 2 and len(set(result.gpu_ids)) == 2, (result.gpu_count, result.gpu_ids)
    with report.check("gpu_count 1: one device, no gpu_ids in the answer"):
        result = client.execute(_program("visible"))
        assert result.completed and result.results["value"]["devices"] == 1, result
        assert result.gpu_ids is None, result.gpu_ids
    with report.check("gpu_count 3: 400"):
        try:
            client.execute(_program("visible"), gpu_count=3)
            raise AssertionError("it ran")
        except ServerError as error:
            assert (error.http_status, error.kind) == (400, "parse"), error
    with report.check("copies between the devices"):
        assert value_of(client, _program("copy_between_devices"), gpu_count=2) is True
    with report.check("tensors come back from both devices"):
        first, second = value_of(client, _program("on_both_devices"), gpu_count=2)
        np.testing.assert_array_equal(first, np.zeros(4, np.float32))
        np.testing.assert_array_equal(second, np.ones(4, np.float32))


def _check_reductions(client: Client, report: Report) -> None:
    for name in ("all_reduce_in_one_process", "all_reduce_in_processes"):
        with report.check(f"NCCL: {name}"):
            begin = time.monotonic()
            found = value_of(client, _program(name, _COUNT), gpu_count=2, timeout_seconds=60)
            report.figure(f"NCCL: {name}", time.monotonic() - begin, "s")
            assert found == [[3.0, 3.0], [3.0, 3.0]], found


def _check_parallel(client: Client, report: Report) -> None:
    with report.check("two programs with a GPU each run side by side"):
        begin = time.monotonic()
        others = [in_background(lambda: value_of(client, _program("hold", 2.0))) for _ in range(2)]
        devices = sorted(each()[0] for each in others)
        assert devices[0] != devices[1], devices
        report.figure("two programs of 2 s on two GPUs", time.monotonic() - begin, "s", below=3.8)


def _check_beside_singles(client: Client, report: Report) -> None:
    """A program for two GPUs comes through while single ones keep both busy, and they go on."""
    used: Counter[str] = Counter()
    errors: list[str] = []
    ended = threading.Event()

    def singles() -> None:
        while not ended.is_set():
            try:
                used[value_of(client, _program("hold", 0.05))[0]] += 1
            except Exception as error:
                errors.append(str(error))

    clients = [in_background(singles) for _ in range(_SINGLE_CLIENTS)]
    time.sleep(2.0)
    before = used.total()
    with report.check("a program for two GPUs is not starved by single ones"):
        waits = []
        for _ in range(3):
            result = client.execute(_program("all_reduce_in_one_process", _COUNT), gpu_count=2, timeout_seconds=60)
            assert result.completed and result.results["value"] == [[3.0, 3.0], [3.0, 3.0]], result.error
            waits.append(result.lease_wait_ms)
        report.figure("longest wait for two leases beside four clients", max(waits), "ms", below=5000)
    time.sleep(1.0)
    ended.set()
    for each in clients:
        each()
    report.attach("programs by device", dict(used))
    report.expect("single programs go on before and after", 0 < before < used.total(), f"{before} and {used.total()}")
    report.expect("single programs use both devices", len(used) == 2, dict(used))
    report.expect("single programs complete", not errors, errors[:2])
