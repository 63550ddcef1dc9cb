"""Every example runs against a server that answers as a real one would, and submits what it says it does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_server import Answer, cache_miss, outcome, sha256

ROOT = Path(__file__).resolve().parents[2]
TIMING = {
    "type": "object",
    "value": {
        "latency_ms_median": {"type": "number", "value": 0.0034},
        "latency_ms_mean": {"type": "number", "value": 0.0035},
        "latency_ms_min": {"type": "number", "value": 0.0033},
        "latency_ms_max": {"type": "number", "value": 0.0061},
        "warmup": {"type": "integer", "value": 9},
        "repeat": {"type": "integer", "value": 90},
        "flush_l2": {"type": "boolean", "value": True},
        "activities_stable": {"type": "boolean", "value": True},
    },
}
OK = {"type": "object", "value": {"ok": {"type": "boolean", "value": True}}}


def run_example(name, server, **environment):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "client" / "python"), environment.pop("PYTHONPATH", "")]),
        "KCORAL_URL": server.url,
        "KCORAL_CPU_URL": server.url,
        "KCORAL_GPU_URL": server.url,
        **environment,
    }
    return subprocess.run(
        [sys.executable, ROOT / "examples" / name], env=environment, capture_output=True, text=True, timeout=120
    )


def health(arch="sm_90a"):
    document = {
        "status": "ok",
        "instance_id": "11111111-2222-4333-8444-555555555555",
        "started_at": "2026-11-29T19:24:56.012345Z",
        "gpu_count": 1 if arch else 0,
        "load": {"request_capacity": 8, "requests_in_progress": 0, "requests_waiting": 0},
        "target": {"arch": arch} if arch else {},
        "versions": {"kcoral": "0.1.0"},
    }
    return lambda request: Answer(200, json.dumps(document).encode())


def ops(request):
    return [step["op"] for step in request.program["instructions"]]


def failure(kind, message):
    return outcome(
        error={
            "kind": kind,
            "message": message,
            "instruction_index": 0,
            "instruction_op": "upload",
            "instruction_id": "module",
            "traceback": "",
        }
    )


def test_first_program(server):
    report = {"type": "object", "value": {"correct": {"type": "boolean", "value": True}, "timing": TIMING}}
    server.then(outcome({"report": report}))
    done = run_example("first_program.py", server)
    assert done.returncode == 0, done.stderr
    assert "'correct': True" in done.stdout and "'latency_ms_median': 0.0034" in done.stdout
    assert ops(server.requests[0]) == ["upload", "get_function", "run", "return"]


def test_an_example_says_what_the_server_lacks(server):
    server.then(failure("parse", "ModuleNotFoundError: No module named 'torch'"))
    done = run_example("first_program.py", server)
    assert done.returncode != 0 and "No module named 'torch'" in done.stderr

    server.then(failure("parse", "ModuleNotFoundError: No module named 'tvm'"))
    done = run_example("benchmark_kernel.py", server)
    assert done.returncode == 1 and "Benchmark failed: parse error in instruction 0" in done.stderr

    server.then(health(arch=None))
    done = run_example("cpu_compile_gpu_execute.py", server)
    assert done.returncode != 0 and "the server has no GPU" in done.stderr


def test_benchmark_kernel(server):
    check = {"type": "object", "value": {"passed": {"type": "boolean", "value": True}}}
    server.then(outcome({"report": {"type": "object", "value": {"check": check, "timing": TIMING}}}))
    done = run_example("benchmark_kernel.py", server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'passed': True}\n{'latency_ms_median'")
    assert server.requests[0].program["options"] == {"timeout_seconds": 120}
    values = np.arange(256, dtype=np.float32).tobytes()
    assert server.requests[0].parts[f"blob:{sha256(values)}"] == values


def test_remote_compile_client(server):
    dst = (np.arange(256, dtype=np.float32) + 1).tobytes()
    tensor = {"type": "tensor", "dtype": "float32", "shape": [256], "part": "return:0", "sha256": sha256(dst)}
    good = outcome({"timing": TIMING, "dst": tensor}, [dst], lease_held_ms=12.5)
    server.then(good, failure("parse", "No module named 'cutlass'"), good, good)
    done = run_example("remote_compile_client.py", server)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "TIRx: 20 ms total, 12 ms on the GPU, 8 ms off it" and lines[1] == "  kernel 3.4 us"
    assert lines[2].startswith("CuTeDSL: FAILED — parse error") and "No module named 'cutlass'" in lines[2]
    assert len(server.requests) == 4


@pytest.fixture
def fake_tvm_ffi(tmp_path):
    package = tmp_path / "tvm_ffi"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cpp.py").write_text(
        "import pathlib\n"
        "def build(name, *, cuda_files, extra_cuda_cflags, build_directory, output):\n"
        "    assert 'compute_90a,code=sm_90a' in extra_cuda_cflags[0]\n"
        "    pathlib.Path(output).write_bytes(b'ELF' * 50_000)\n"
        "    return output\n"
    )
    return str(tmp_path)


def test_library_upload_client(server, fake_tvm_ffi):
    library = b"ELF" * 50_000
    server.then(health(), cache_miss(sha256(library)), outcome({"check": OK, "timing": TIMING}, lease_held_ms=3))
    done = run_example("library_upload_client.py", server, PYTHONPATH=fake_tvm_ffi)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "built 146 KiB for sm_90a\n20 ms total, 3 ms on the GPU, kernel 3.4 us\n"
    assert server.requests[2].parts[f"blob:{sha256(library)}"] == library


def test_cpu_compile_gpu_execute(server):
    library = b"\x7fELF" + bytes(40_000)
    value = {"type": "bytes", "part": "return:0", "sha256": sha256(library)}
    server.then(
        health(),
        outcome({"library": value}, [library]),
        cache_miss(sha256(library)),
        outcome({"check": OK, "timing": TIMING}, lease_held_ms=3),
    )
    done = run_example("cpu_compile_gpu_execute.py", server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "compiled 39 KiB for sm_90a",
        "CPU request held a GPU lease for 0 ms",
        "GPU request held its lease for 3 ms; kernel median 3.4 us",
    ]
    compile_steps = server.requests[1].program["instructions"]
    assert compile_steps[1]["cpu_only"] is True and compile_steps[2]["language"] == "cuda"
    assert compile_steps[4]["args"][1] == {"arch": "sm_90a", "extra_cuda_cflags": ["-O3"]}
    assert server.requests[3].parts[f"blob:{sha256(library)}"] == library


def test_hello_cpu(server):
    dice = np.array([1, 5, 4, 3, 3, 6, 1, 5, 2, 1], np.int64).tobytes()
    text = b"1 5 4 3 3 6 1 5 2 1"
    values = {
        "dice": {"type": "tensor", "dtype": "int64", "shape": [10], "part": "return:0", "sha256": sha256(dice)},
        "verdict": {"type": "object", "value": {"sum": {"type": "integer", "value": 31}}},
        "file": {"type": "file", "size": len(text), "part": "return:1", "sha256": sha256(text)},
    }
    server.then(outcome(values, [dice, text], stdout="rolling 10 dice\n"))
    done = run_example("hello_cpu.py", server)
    assert done.returncode == 0, done.stderr
    assert "verdict: {'sum': 31}" in done.stdout and "printed: rolling 10 dice" in done.stdout
