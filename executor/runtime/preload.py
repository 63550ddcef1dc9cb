"""What a zygote does before it is ready: import the heavy modules, prove that its forks work, see what is installed.

Theory of operation. A module that starts threads when it is imported can leave every fork of the process hanging in
its first parallel loop. So after the imports a fork works for a moment with each library that is known to run in
parallel; one that does not come back in time condemns the preload by name, at the start, instead of every program
later.

Versions are read from the packages' metadata: asking a package itself would import it. That happens in a fork, too: what
it takes to read them would weigh on the fork of every program.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
from typing import Any, Callable, Optional

from errors import message_of, name_of
from jsontext import parse, to_text
from kernel import pidfd_open

PROBE_SECONDS = 5.0
_NVCC_SECONDS = 10.0
_VERSIONS_SECONDS = 30.0
_ANSWER_BYTES_MAX = 60_000  # a pipe holds it without a reader
_PROBE_SIZE = 512  # a product of matrices this large is shared out among threads
_PROBE_ELEMENTS = 1 << 20

# Versions as `/health` names them: the distributions that may hold them, in the order of preference.
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "cuda": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
    "tvm": ("apache-tvm", "tvm"),
    "tvm_ffi": ("apache-tvm-ffi",),
    "triton": ("triton",),
    "cutlass": ("nvidia-cutlass-dsl",),
    "numpy": ("numpy",),
}


class PreloadFailed(Exception):
    """The zygote cannot serve; the message says which preload is at fault and why."""


def import_all(names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            reason = name_of(error) + ": " + message_of(error)
            message = "the preload %r cannot be imported by %s: %s" % (name, sys.executable, reason)
            raise PreloadFailed(message + " (--python chooses another, --preload what is imported)") from error


def prove_forks(names: list[str], seconds: float = PROBE_SECONDS) -> None:
    """Lets a fork work with each library that is loaded. Raises PreloadFailed."""
    for library, work in (("numpy", _work_with_numpy), ("torch", _work_with_torch)):
        module = sys.modules.get(library)
        if module is None:
            continue
        try:
            _in_fork(lambda: work(module), seconds)
        except ForkFailed as failure:
            blamed = library if library in names else "%s (imported by one of: %s)" % (library, ", ".join(names))
            raise PreloadFailed("the preload %s does not work in a fork: parallel work %s" % (blamed, failure)) from failure


class ForkFailed(Exception):
    """A fork did not do its work; the message says what it did instead."""


def _in_fork(work: Callable[[], Any], seconds: float) -> Any:
    """What `work` returns in a fork, as JSON can carry it. Raises ForkFailed."""
    answer, answer_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(answer_end, to_text(work()).encode("utf-8")[:_ANSWER_BYTES_MAX])
            code = 0
        except BaseException as error:
            os.write(2, ("%s: %s\n" % (name_of(error), message_of(error))).encode("utf-8", "replace"))
        finally:
            os._exit(code)
    os.close(answer_end)
    try:
        _wait_for(child, seconds)
        return parse(os.read(answer, _ANSWER_BYTES_MAX).decode("utf-8"))
    finally:
        os.close(answer)


def _wait_for(child: int, seconds: float) -> None:
    pidfd = pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(seconds * 1000):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise ForkFailed("hung for %g s" % seconds)
    finally:
        os.close(pidfd)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise ForkFailed("ended with wait status %d" % status)


def _work_with_numpy(numpy: Any) -> None:
    matrix = numpy.ones((_PROBE_SIZE, _PROBE_SIZE))
    assert (matrix @ matrix)[0, 0] == _PROBE_SIZE


def _work_with_torch(torch: Any) -> None:
    matrix = torch.ones((_PROBE_SIZE, _PROBE_SIZE))
    assert (matrix @ matrix)[0, 0].item() == _PROBE_SIZE
    assert torch.ones(_PROBE_ELEMENTS).exp().log().sum().item() > 0


def versions() -> dict[str, str]:
    """What is installed, without importing any of it; little where that cannot be found out."""
    try:
        return _in_fork(_find_versions, _VERSIONS_SECONDS)
    except ForkFailed as failure:
        os.write(2, ("looking at what is installed %s: /health will not show it\n" % failure).encode())
        return {"python": "%d.%d.%d" % sys.version_info[:3]}


def _find_versions() -> dict[str, str]:
    from importlib import metadata
    from platform import python_version

    found = {"python": python_version()}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    nvcc = _nvcc_version()
    if nvcc is not None:
        found["nvcc"] = nvcc
        found.setdefault("cuda", nvcc)
    return found


def _nvcc_version() -> Optional[str]:
    """The release that `nvcc --version` names, as in "Cuda compilation tools, release 12.4, V12.4.131"."""
    import shutil
    import subprocess

    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    try:
        said = subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, timeout=_NVCC_SECONDS, check=True
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    for word in said.replace(",", " ").split():
        if word.startswith("V") and word[1:2].isdigit():
            return word[1:]
    return None
