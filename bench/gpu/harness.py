"""What all sections share: servers of the installation under test, and programs made of the files in uploads/."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcoral import Client, Program, ServerError, Tensor

HERE = Path(__file__).resolve().parent
UPLOADS = HERE / "uploads"
ROOT = HERE.parents[1]
SLOTS = 8

_READY_SECONDS = 60.0  # importing PyTorch in eight processes at once, from a cold disk
_STOP_SECONDS = 5.0  # what runs longer is ended by force
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Bench:
    """Where everything is. Passed to every section."""

    kcoral: Path  # the unpacked installation: bin/kcoral, lib/kcoral
    out: Path  # logs and figures
    work: Path  # data directories and what is compiled; removed at the end
    device: str  # "gpu", or "cpu" for trying these scripts out
    site: Path | None  # further Python packages for the programs
    store_bench: Path | None
    multiple_gpus: str  # what --gpus is given where two are wanted

    @contextlib.contextmanager
    def server(
        self,
        name: str,
        *flags: str,
        runs_per_process: int = 1,
        gpus: str = "0",
        lease_wait_seconds: int | None = None,
        device: str | None = None,
    ) -> Iterator[Server]:
        """A server with a data directory of its own, ended with the block. `device`: another than the bench's."""
        data_dir = self.work / f"data-{name}"
        command = [str(self.kcoral / "bin" / "kcoral"), "server", "--port", "0", "--data-dir", str(data_dir)]
        command += ["--python", sys.executable, "--preload", "torch"]
        command += ["--max-requests-per-worker", str(runs_per_process), *flags]
        if (device or self.device) == "gpu":
            command += ["--device", "gpu", "--gpus", gpus, "--workers-per-gpu", str(SLOTS)]
            if lease_wait_seconds is not None:
                command += ["--lease-wait-timeout-seconds", str(lease_wait_seconds)]
        else:
            command += ["--device", "cpu", "--num-workers", str(SLOTS)]
        server = Server(command, self.out / f"server-{name}.log")
        try:
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(data_dir, ignore_errors=True)

    def compile_kernels(self, client: Client) -> bytes:
        """The cubin of uploads/kernels.cu for the server's GPUs."""
        source = UPLOADS / "kernels.cu"
        arch = client.health()["target"].get("arch", "sm_90")
        cubin = self.work / (source.stem + ".cubin")
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        command = [nvcc, "-cubin", "-O3", f"-arch={arch}", "-o", str(cubin), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"nvcc failed: {done.stderr}")
        return cubin.read_bytes()


class Server:
    """One `kcoral server`. It ends with this process, however that ends."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        begin = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        line = self._ready_line(begin + _READY_SECONDS)
        match = re.search(r"http://[^ ]*?:(\d+)", line)
        if match is None:
            raise RuntimeError(f"the server's ready line has no address: {line!r}; its log: {self._log_end()}")
        self.port = int(match.group(1))
        self.wait_until_idle(begin + _READY_SECONDS)

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def client(self, **options: Any) -> Client:
        return Client(self.url, **options)

    def wait_until_idle(self, deadline: float) -> None:
        """Until every slot has its process: /health says "ok" then."""
        with self.client() as client:
            while (document := client.health())["status"] != "ok":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the server is not ready in time: {document}; its log: {self._log_end()}")
                time.sleep(0.05)

    def _ready_line(self, deadline: float) -> str:
        assert self._process is not None and self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not piece:
                raise RuntimeError(f"the server did not become ready; its log: {self._log_end()}")
            line += piece
        return line.decode(errors="replace")

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def source(name: str) -> str:
    """The text of a file in uploads/."""
    return (UPLOADS / name).read_text()


def call(
    text: str,
    name: str,
    *arguments: Any,
    files: dict[str, bytes] | None = None,
    cpu_only: bool = False,
    after: str | None = None,
) -> Program:
    """A program that calls `name(*arguments)` of a module and returns the result as "value".

    Instructions: `files` first, then the module, the function and its call. Arrays and bytes among the arguments are
    uploaded before the module. `after` names a function of the same module that is called with the result, and whose
    result is returned instead.
    """
    program = Program()
    for path, content in (files or {}).items():
        program.upload(kind="file", value=content, path=path)
    handles = [_argument(program, each) for each in arguments]
    module = program.upload(kind="module", source=text, id="module")
    function = program.get_function(module=module, name=name, cpu_only=cpu_only, id=name)
    value = program.run(fn=function, args=handles, id="call")
    if after is not None:
        value = program.run(fn=program.get_function(module=module, name=after, id=after), args=[value], id="after")
    program.return_(key="value", value=value)
    return program


def _argument(program: Program, value: Any) -> Any:
    if isinstance(value, bytes):
        return program.upload(kind="bytes", value=value)
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        return program.upload(kind="tensor", value=value)
    return value


def value_of(client: Client, program: Program, **options: Any) -> Any:
    """The "value" that a program returned; raises AssertionError with the reason where it did not complete."""
    result = client.execute(program, **options)
    assert result.completed, f"{result.error}\n{result.error.traceback if result.error else ''}"
    return result.results["value"]


def outcome_of(client: Client, program: Program, **options: Any) -> str:
    """How a program ended, in a word or three: "COMPLETED", "runtime in 4", "HTTP 504 timeout"."""
    try:
        result = client.execute(program, **options)
    except ServerError as error:
        return f"HTTP {error.http_status} {error.kind}"
    if result.error is None:
        return result.status
    return f"{result.error.kind} in {result.error.instruction_index}"


def in_background(function: Callable[[], Any]) -> Callable[[], Any]:
    """Starts `function` in a thread. What is returned waits for it, and returns or raises as it did."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def body() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    return join


def wait_until(condition: Callable[[], Any], seconds: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
