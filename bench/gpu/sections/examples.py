"""The programs in examples/, run as a user would, against servers whose Python may lack what some of them need.

Where a package is there the example must work and print what it promises; where it is not, it must end with an error
that names the package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import ROOT, Bench, Server, call, value_of
from kcoral import Client
from report import Report

SECONDS = 150

_EXAMPLE_SECONDS = 100
_PROBE = (
    "import importlib.util\ndef missing(names):\n    return [n for n in names if importlib.util.find_spec(n) is None]\n"
)


@dataclass(frozen=True)
class Example:
    name: str
    prints: Sequence[str]  # what stands in its output, in this order, when all goes well
    packages: Sequence[str] = field(default=())  # that it needs on the server beyond PyTorch
    local_packages: Sequence[str] = field(default=())  # that it needs itself


EXAMPLES = (
    Example("first_program.py", ("'correct': True", "latency_ms_median")),
    Example("benchmark_kernel.py", ("'passed': True", "latency_ms_median"), ("tvm",)),
    Example(
        "cpu_compile_gpu_execute.py",
        ("KiB for sm_", "CPU request held a GPU lease for 0 ms", "kernel median"),
        ("tvm_ffi",),
    ),
    Example("library_upload_client.py", ("KiB for sm_", "ms total", "kernel"), ("tvm_ffi",), ("tvm_ffi",)),
)

# remote_compile_client.py goes on where one of its languages fails, and prints a line for each.
LANGUAGES = {"TIRx": "tvm", "CuTeDSL": "cutlass", "CUDA C": "tvm_ffi", "Triton": "triton"}


def run(bench: Bench, report: Report) -> None:
    flags = _flags(bench)
    with (
        bench.server("examples", *flags) as gpu_server,
        bench.server("examples-cpu", *flags, device="cpu") as cpu_server,
        gpu_server.client() as client,
    ):
        missing = _missing(client)
        report.note("missing on the server: " + (", ".join(sorted(missing)) or "nothing"))
        for example in EXAMPLES:
            with report.check(example.name):
                done = _run_example(example.name, gpu_server, cpu_server, bench)
                report.attach(example.name, done.stdout + done.stderr)
                _check_example(example, missing, done)
        with report.check("remote_compile_client.py ends in time"):
            done = _run_example("remote_compile_client.py", gpu_server, cpu_server, bench)
            report.attach("remote_compile_client.py", done.stdout + done.stderr)
            for language, package in LANGUAGES.items():
                with report.check(f"remote_compile_client.py: {language}"):
                    _check_language(language, package, missing, done)


def _flags(bench: Bench) -> list[str]:
    """What the programs need to find compilers and further packages."""
    # Ninja and nvcc are found by PATH: beside the Python, and where the toolkit is.
    places = [os.path.dirname(sys.executable), os.path.dirname(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")]
    flags = ["--env", "PATH=" + os.pathsep.join([*places, "/usr/local/bin", "/usr/bin", "/bin"])]
    if bench.site is not None:
        flags += ["--expose", str(bench.site), "--env", f"PYTHONPATH={_site_path(bench)}"]
    return flags


def _site_path(bench: Bench) -> str:
    """The directory of further packages, with those that its .pth files name."""
    assert bench.site is not None
    places = [bench.site]
    for file in sorted(bench.site.glob("*.pth")):
        lines = [bench.site / line for line in file.read_text().split("\n") if line and not line.startswith("import")]
        places += [line for line in lines if line.is_dir()]
    return os.pathsep.join(map(str, places))


def _missing(client: Client) -> set[str]:
    names = sorted({"tvm", "tvm_ffi", "cutlass", "triton"})
    return set(value_of(client, call(_PROBE, "missing", names)))


def _run_example(name: str, gpu_server: Server, cpu_server: Server, bench: Bench) -> subprocess.CompletedProcess[str]:
    path = [str(ROOT / "client" / "python")]
    if bench.site is not None:
        path.append(_site_path(bench))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", ""), "/usr/local/cuda/bin"]),
        "PYTHONPATH": os.pathsep.join(path),
        "KCORAL_URL": gpu_server.url,
        "KCORAL_GPU_URL": gpu_server.url,
        "KCORAL_CPU_URL": cpu_server.url,
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_EXAMPLE_SECONDS,
    )


def _check_example(example: Example, missing: set[str], done: subprocess.CompletedProcess[str]) -> None:
    said = done.stdout + done.stderr
    lacking = [name for name in (*example.packages, *example.local_packages) if name in missing]
    if lacking:
        assert done.returncode != 0, f"it ended with 0 without {lacking}: {said}"
        assert _names_package(said, lacking[0]), f"nothing says that {lacking[0]} is missing: {said}"
        return
    assert done.returncode == 0, f"exit code {done.returncode}: {said}"
    at = 0
    for part in example.prints:
        at = done.stdout.find(part, at)
        assert at >= 0, f"it does not print {part!r} (in order): {said}"


def _check_language(language: str, package: str, missing: set[str], done: subprocess.CompletedProcess[str]) -> None:
    lines = done.stdout.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith(language + ":")), None)
    assert at is not None, f"no line for it: {done.stdout}{done.stderr}"
    if package in missing:
        assert "FAILED" in lines[at] and _names_package(lines[at], package), lines[at]
        return
    assert "ms total" in lines[at] and "on the GPU" in lines[at], lines[at]
    assert at + 1 < len(lines) and "  kernel " in lines[at + 1], lines[at:]


def _names_package(text: str, package: str) -> bool:
    return ("unavailable" in text or "No module named" in text) and package.replace("_", " ") in text.replace(
        "_", " "
    ).lower()
