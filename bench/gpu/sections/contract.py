"""The rows of docs/protocol.md that need a GPU: tensors, times, errors, health, what a program sees, and benchmark."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import numpy as np

from harness import Bench, Server, call, in_background, outcome_of, source, value_of
from kcoral import Client, Program, ServerError, Tensor
from kcoral import tensor as tensors
from report import Report

SECONDS = 90

_LEASE_WAIT_SECONDS = 3
_UNFLAGGED_TOLERANCE = 0.05  # of a time that nothing is said against
_TIMING_FIELDS = {
    "latency_ms_median",
    "latency_ms_mean",
    "latency_ms_min",
    "latency_ms_max",
    "warmup",
    "repeat",
    "flush_l2",
    "activities_stable",
}


def run(bench: Bench, report: Report) -> None:
    with (
        bench.server("contract", lease_wait_seconds=_LEASE_WAIT_SECONDS) as server,
        server.client() as client,
    ):
        _check_health(client, report)
        _check_gpus(server, report)
        _check_tensors(client, report)
        _check_surroundings(client, report)
        _check_errors(client, report)
        _check_benchmark(client, report)
        _check_other_libraries(client, report)
        _check_lease(client, report)


def _program(name: str, *arguments: Any) -> Program:
    return call(source("contracted.py"), name, *arguments)


def _check_health(client: Client, report: Report) -> None:
    with report.check("/health: target, devices and versions"):
        document = client.health()
        assert document["gpu_count"] == 1, document
        assert set(document["target"]) == {"arch"} and document["target"]["arch"].startswith("sm_"), document["target"]
        capability = value_of(client, _program("surroundings"))["capability"]
        arch = "sm_%d%d" % tuple(capability) + ("a" if capability[0] >= 9 else "")
        assert document["target"]["arch"] == arch, f"{document['target']} and {arch}"
        missing = {"kcoral", "python", "torch", "cuda", "triton", "numpy", "nvcc"} - set(document["versions"])
        assert not missing, f"versions lack {missing}: {document['versions']}"
        assert all(isinstance(version, str) for version in document["versions"].values()), document["versions"]
        report.attach("health", document)


def _check_gpus(server: Server, report: Report) -> None:
    with report.check("GET /gpus: one device, with its name and architecture"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/gpus")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 200, f"{answer.status}: {text[:300]}"
        document = json.loads(text)
        report.attach("gpus", document)
        devices = document["gpus"]
        assert len(devices) == 1 and devices[0]["name"] and devices[0]["arch"].startswith("sm_"), text


def _check_tensors(client: Client, report: Report) -> None:
    with report.check("a tensor that is uploaded is on the GPU"):
        found = value_of(client, _program("where", np.ones((3, 5), np.float16)))
        assert found == ["cuda:0", "float16", [3, 5], True], found
    for dtype in tensors.ITEM_BYTES:
        for shape in ((3, 5), (), (0, 4)):
            with report.check(f"{dtype} {shape} goes there and back"):
                _check_round_trip(client, dtype, shape)
    with report.check("views of GPU tensors come back as they look"):
        value = value_of(client, _program("views"))
        base = np.arange(24, dtype=np.float32).reshape(4, 6)
        np.testing.assert_array_equal(value["transposed"], base.T)
        np.testing.assert_array_equal(value["strided"], base[::2, 1::2])
        np.testing.assert_array_equal(value["with gradient"], base)
        np.testing.assert_array_equal(value["nested"][0], base[0])
        np.testing.assert_array_equal(value["nested"][1]["deep"], base[:, 0])
        np.testing.assert_array_equal(value["conjugate"], base[0] - 1j * base[1])


def _check_round_trip(client: Client, dtype: str, shape: tuple[int, ...]) -> None:
    length = tensors.byte_length(dtype, shape)
    seed = sum(map(ord, dtype))
    content = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, length, dtype=np.uint8).tobytes()
    sent = Tensor(dtype, shape, content)
    received = tensors.encode(value_of(client, _program("same", sent)))
    assert received == sent, f"{received.dtype} {received.shape} {received.data!r}, not {content!r}"


def _check_surroundings(client: Client, report: Report) -> None:
    with report.check("a program sees its device alone, and its directory"):
        found = value_of(client, _program("surroundings"))
        report.attach("surroundings", found)
        assert found["visible"] and "," not in found["visible"], found
        assert found["devices"] == 1 and found["is_in_its_directory"], found
    with report.check("random generators are seeded anew, on the GPU too"):
        first, second = (value_of(client, _program("random_number")) for _ in range(2))
        assert first[0] != second[0], f"CPU: {first} and {second}"
    with report.check("more GPUs than there are: 400"):
        try:
            client.execute(_program("surroundings"), gpu_count=2)
            raise AssertionError("it ran")
        except ServerError as error:
            assert (error.http_status, error.kind) == (400, "parse"), error


def _check_errors(client: Client, report: Report) -> None:
    for name in ("bad_index", "bad_shapes"):
        with report.check(f"an error of the GPU is the run's: {name}"):
            result = client.execute(_program(name))
            assert result.error is not None and result.error.kind == "runtime", result
            assert result.error.instruction_id == "call" and name in result.error.traceback, result.error


def _check_benchmark(client: Client, report: Report) -> None:
    with report.check("benchmark: the fields of its report"):
        found = value_of(client, _program("timed"))
        assert _TIMING_FIELDS <= set(found), found
        assert found["flush_l2"] is True and found["activities_stable"] is True, found
        assert 0 < found["latency_ms_min"] <= found["latency_ms_median"] <= found["latency_ms_max"] < 1, found
        assert found["warmup"] >= 1 and found["repeat"] > 100, found
        report.figure("benchmark: add of 4 MiB, median", found["latency_ms_median"] * 1e3, "us")
    with report.check("benchmark: counts override budgets"):
        found = value_of(client, _program("timed_with_counts"))
        assert (found["warmup"], found["repeat"], found["flush_l2"]) == (3, 17, False), found
    with report.check("benchmark: arguments and configuration"):
        assert value_of(client, _program("timed_with_arguments", np.ones(4096, np.float32)))["repeat"] == 5
    with report.check("benchmark: calls that differ are not stable"):
        assert value_of(client, _program("timed_changing"))["activities_stable"] is False
    with report.check("benchmark: work on another stream counts"):
        found = value_of(client, _program("timed_on_a_stream"))
        assert found["latency_ms_median"] > 0.05, found
    _check_benchmark_and_profiler(client, report)
    for name, words in (
        ("timed_raising", "on purpose"),
        ("timed_breaking", "assert"),
        ("timed_no_callable", "callable"),
        ("timed_bad_config", "repeats"),
        ("timed_nothing", ""),
    ):
        with report.check(f"benchmark: {name}"):
            result = client.execute(_program(name))
            assert result.error is not None, f"it completed: {result.results}"
            assert result.error.kind == "runtime" and words in result.error.message, result.error


def _check_benchmark_and_profiler(client: Client, report: Report) -> None:
    with report.check("benchmark after PyTorch's profiler"):
        result = client.execute(_program("timed_after_the_profiler"))
        if result.error is not None:  # refusing is as good as timing rightly
            assert "profiler" in result.error.message.lower() or "cupti" in result.error.message.lower(), result.error
            report.note(f"benchmark after the profiler is refused: {result.error.message[:150]}")
        else:
            found = result.results["value"]
            assert found["kernels"] >= 1, "the profiler saw nothing"
            _check_times_around_profiler(found["before"], found["after"], report)
    with report.check("benchmark during PyTorch's profiler: both survive"):
        found = value_of(client, _program("timed_during_the_profiler"))
        report.note(f"benchmark during the profiler: {found['said'][:150]}")
        assert found["kernels"] >= 1, found


def _check_times_around_profiler(before: dict[str, Any], after: dict[str, Any], report: Report) -> None:
    """PyTorch's profiler keeps CUPTI for good, and what is timed beside it reads longer: rightly, or with a flag."""
    before_us, after_us = (1e3 * each["latency_ms_median"] for each in (before, after))
    assert not before["environment"]["other_cupti_client"], f"flagged before there was a profiler: {before}"
    if after["environment"]["other_cupti_client"]:
        report.figure("benchmark after the profiler, flagged: reads longer by", after_us - before_us, "us")
        return
    detail = f"{before_us:.2f} us before it, {after_us:.2f} us after it, and no flag"
    assert abs(after_us - before_us) < _UNFLAGGED_TOLERANCE * before_us, detail


def _check_other_libraries(client: Client, report: Report) -> None:
    for name in ("of_cupy", "of_jax"):
        with report.check(f"arrays {name.replace('_', ' ')} come back"):
            result = client.execute(_program(name), timeout_seconds=60)
            if result.error is not None and "ModuleNotFoundError" in result.error.traceback:
                report.note(f"{name}: {result.error.message}")
                continue
            assert result.error is None, f"{result.error}\n{result.error.traceback}"
            value = result.results["value"]
            np.testing.assert_array_equal(value[0], np.arange(12, dtype=np.float32).reshape(3, 4))
            if name == "of_cupy":
                np.testing.assert_array_equal(value[1], np.ones((2, 2), np.int64))
            else:
                assert value[1] == "gpu", f"JAX computed on {value[1]}"


def _check_lease(client: Client, report: Report) -> None:
    with report.check("the times of a program that holds the lease"):
        result = client.execute(_program("hold", 0.3))
        assert result.completed, result.error
        assert 300 <= result.lease_held_ms <= result.elapsed_ms + 1, result
        assert result.lease_held_ms + result.lease_wait_ms <= result.elapsed_ms + 1, result
        assert result.gpu_count is None and result.gpu_ids is None, result
    with report.check("a program that needs no GPU holds no lease"):
        program = Program()
        program.upload(kind="file", value=b"content", path="a/file")
        program.return_file(key="value", path="a/file")
        result = client.execute(program)
        assert result.completed and result.lease_held_ms == 0 and result.lease_wait_ms == 0, result
    with report.check("waiting for the lease does not count against the deadline"):
        holder = in_background(lambda: client.execute(_program("hold", 2.0)))
        time.sleep(0.5)
        result = client.execute(_program("hold", 0.0), timeout_seconds=1)
        assert result.completed and result.lease_wait_ms > 1000, result
        assert holder().completed
    with report.check("waiting for the lease too long is unavailable"):
        holder = in_background(lambda: client.execute(_program("hold", _LEASE_WAIT_SECONDS + 2.0)))
        time.sleep(0.5)
        outcome = outcome_of(client, _program("hold", 0.0))
        assert outcome == "unavailable in 0", outcome
        assert holder().completed
