"""The sides of a comparison: whoever times the kernels of uploads/measured.py, in a plain process or in the service."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness import HERE, UPLOADS, Bench, call, source
from kcoral import Client, ReturnedFolder

Times = dict[str, dict[str, Any]]  # by kernel: what measured.measure returns


class Side(Protocol):
    def measure(self, rounds: int, samples: int, names: Sequence[str] | None = None) -> Times:
        """One turn: what measured.measure returns."""


class PlainProcesses:
    """Where plain processes run, with the installation's own timing library. What Triton compiled stays there."""

    def __init__(self, bench: Bench, cubin: bytes) -> None:
        self._directory = bench.work / "plain"
        self._directory.mkdir()
        for name in ("measured.py", "driver.py"):
            shutil.copy(UPLOADS / name, self._directory)
        (self._directory / "kernels.cubin").write_bytes(cubin)
        self._importable = bench.kcoral / "lib" / "kcoral" / "python" / "importable"
        self._log = bench.out / "plain.log"

    def start(self) -> PlainProcess:
        return PlainProcess(self._directory, self._importable, self._log)


class PlainProcess:
    """plain.py: one process for all its turns. PyTorch keeps the memory of the first for the others."""

    def __init__(self, directory: Path, importable: Path, log_path: Path) -> None:
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-B", str(HERE / "plain.py"), str(importable)],
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
            )

    def measure(self, rounds: int, samples: int, names: Sequence[str] | None = None) -> Times:
        assert self._process.stdin is not None and self._process.stdout is not None
        arguments = {"rounds": rounds, "samples": samples, "names": names}
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the plain process ended; its last words are in plain.log")
        times: Times = json.loads(line)
        return times

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class FreshPlainProcesses:
    """A plain process for each turn, with a context and memory of its own, as a program of the service has. It starts
    and ends within the turn, so that it disturbs nobody else's."""

    def __init__(self, processes: PlainProcesses) -> None:
        self._processes = processes

    def measure(self, rounds: int, samples: int, names: Sequence[str] | None = None) -> Times:
        process = self._processes.start()
        try:
            return process.measure(rounds, samples, names)
        finally:
            process.end()


class Service:
    """Programs of the service, each with a fresh process."""

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

    def measure(self, rounds: int, samples: int, names: Sequence[str] | None = None) -> Times:
        arguments = (self._cubin, rounds, samples, None if names is None else list(names))
        program = call(source("measured.py"), "measure", *arguments, files=self._files)
        result = self._client.execute(program, priority=100, timeout_seconds=60)
        if result.error is not None:
            raise RuntimeError(f"{result.error}\n{result.error.traceback}")
        self.lease_wait_ms.append(result.lease_wait_ms)
        times: Times = result.results["value"]
        return times


@contextlib.contextmanager
def idle_contexts(count: int) -> Iterator[None]:
    """As many processes that have a context on the device and do nothing with it, as slots have that stand by."""
    command = [sys.executable, "-S", str(HERE / "idle_context.py")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment))
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline() != b"made\n":
                raise RuntimeError("a context could not be made")
        yield
    finally:
        for process in running:
            process.communicate()  # closes its standard input, and it ends
