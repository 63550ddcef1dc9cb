"""The Python side of an executor: `PYTHON -B -s /kcoral/python/zygote.py`, started inside a slot by `kcoral-init
zygote`.

Theory of operation (ARCHITECTURE.md, "Fresh process for each program"). This process imports what is heavy once and
then forks a fresh runtime for each program. In reading order:

    zygote.py        this: loads the rest out of a program's reach (private.py) and starts it
    startup.py       configuration, preloads (preload.py), readiness
    serving.py       forks runtimes (namespaces.py), reports their ends
    runtime.py       a fork becomes a fresh script (environment.py) and takes one program, or more (reuse.py)
    instructions.py  upload, get_function, run, return (modules.py, libraries.py, lease.py, timing.py)
    boundary.py      the crossing between our code and the program's
    values.py        what is returned (arrays.py, files.py, memory.py)
    gpu_arrays.py    tensors of a GPU server, in and out (cuda.py, dlpack.py)
    errors.py        what is reported when it fails
    frames.py        what is said to the executor (kernel.py, jsontext.py)
    importable/      what a program may import of ours: `kcoral.builtins`
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    directory = os.path.dirname(os.path.abspath(__file__))
    # The interpreter put our directory first. Programs must find `kcoral` there and nothing else of ours.
    sys.path[:] = [os.path.join(directory, "importable"), *[path for path in sys.path if path != directory]]
    start(directory).main(directory)


def start(directory: str):  # type: ignore[no-untyped-def]
    """The module `startup`, loaded privately."""
    path = os.path.join(directory, "private.py")
    loader: dict[str, object] = {"__name__": "kcoral_runtime.private"}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), loader)
    return loader["PrivateModules"](directory).load("startup")  # type: ignore[operator]


if __name__ == "__main__":
    main()
