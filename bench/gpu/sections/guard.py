"""cpu_only runs: CUDA calls in them are found and named, and the GPU is really lent to others meanwhile."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from harness import Bench, call, in_background, source, value_of
from kcoral import Client, Handle, InstructionError, Program
from report import Report

SECONDS = 60

_TOTAL = 1024 * 1025 / 2
_REST_SECONDS = 1.5


def run(bench: Bench, report: Report) -> None:
    with bench.server("guard") as server, server.client() as client:
        cubin = bench.compile_kernels(client)
        value_of(client, _around("rest", 0.0))
        for name in ("through_pytorch", "through_the_driver", "swallowed"):
            with report.check(f"gpu_access: {name}"):
                _check_access(client, name)
        with report.check("gpu_access: before the GPU was ever used"):
            error = _error_of(client, call(*_module(), "through_pytorch", 0.0, files=_files(), cpu_only=True))
            assert error.kind == "gpu_access", error
        with report.check("gpu_access: the program that held the GPU meanwhile is named"):
            _check_interfered(client)
        with report.check("a cpu_only run that behaves, and what it left on the GPU"):
            assert value_of(client, _around("rest", 0.1)) == _TOTAL
        with report.check("the GPU is lent to others during a cpu_only run"):
            _check_lent(client, report)
        with report.check("the GPU is lent only once its work has ended"):
            _check_synchronised(client, cubin, report)
        with report.check("after gpu_access the next program is well"):
            assert value_of(client, _around("rest", 0.0)) == _TOTAL


def _module() -> tuple[str]:
    return (source("guarded.py"),)


def _files() -> dict[str, bytes]:
    return {"driver.py": source("driver.py").encode()}


def _around(name: str, seconds: float, start: str = "start", *arguments: Any) -> Program:
    """start() on the GPU; name(seconds) as cpu_only; then what start() left is summed up on the GPU."""
    program = Program()
    program.upload(kind="file", value=source("driver.py").encode(), path="driver.py")
    handles: list[Handle | Any] = [
        program.upload(kind="bytes", value=each) if isinstance(each, bytes) else each for each in arguments
    ]
    module = program.upload(kind="module", source=source("guarded.py"))
    tensor = program.run(fn=program.get_function(module=module, name=start), args=handles)
    alone = program.get_function(module=module, name=name, cpu_only=True)
    program.return_(key="alone", value=program.run(fn=alone, args=[seconds], id="alone"))
    program.return_(key="value", value=program.run(fn=program.get_function(module=module, name="total"), args=[tensor]))
    return program


def _error_of(client: Client, program: Program) -> InstructionError:
    result = client.execute(program)
    assert result.error is not None, f"it is {result.status}"
    return result.error


def _check_access(client: Client, name: str) -> None:
    error = _error_of(client, _around(name, 0.0))
    assert error.kind == "gpu_access", error
    assert error.instruction_id == "alone", error
    assert error.cuda_call and error.cuda_call.startswith("cu"), f"cuda_call is {error.cuda_call!r}"
    assert error.location, f"location is {error.location!r}"
    assert error.interfered_request_id is None, f"interfered_request_id is {error.interfered_request_id!r}"
    if name == "through_the_driver":
        assert "cuMemAlloc" in error.cuda_call, f"cuda_call is {error.cuda_call!r}"


def _check_interfered(client: Client) -> None:
    """The intruder gives the GPU back for its cpu_only run, the holder takes it, the intruder calls CUDA."""
    holder_id = str(uuid.uuid4())
    begun = threading.Event()

    def intrude() -> InstructionError:
        begun.set()
        return _error_of(client, _around("through_pytorch", 2.0))

    intruder = in_background(intrude)
    begun.wait()
    time.sleep(0.3)
    hold = call(*_module(), "hold", 4.0, files=_files())
    assert client.execute(hold, request_id=holder_id).completed
    error = intruder()
    assert error.kind == "gpu_access", error
    assert error.interfered_request_id == holder_id, f"{error.interfered_request_id!r}, held by {holder_id}"


def _check_lent(client: Client, report: Report) -> None:
    lender = in_background(lambda: client.execute(_around("rest", _REST_SECONDS)))
    time.sleep(0.5)
    begin = time.monotonic()
    assert value_of(client, call(*_module(), "hold", 0.0, files=_files())) == 1024
    other_seconds = time.monotonic() - begin
    lent = lender()
    assert lent.completed, lent.error
    report.figure(
        "another program while the lease is lent", other_seconds * 1e3, "ms", below=1e3 * (_REST_SECONDS - 0.6)
    )
    report.figure("lease_held_ms of the lender", lent.lease_held_ms, "ms", below=lent.elapsed_ms - 950 * _REST_SECONDS)


def _check_synchronised(client: Client, cubin: bytes, report: Report) -> None:
    result = client.execute(_around("rest", 0.2, "start_and_keep_busy", cubin, 600_000_000))
    assert result.completed and result.results["value"] == _TOTAL, result.error
    report.figure("lease_held_ms with 600 ms of work left before it is lent", result.lease_held_ms, "ms", at_least=590)
