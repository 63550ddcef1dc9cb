"""Runs the Python side on the driver of tests/support/fake_cuda.c."""

import json
import os
import subprocess
import sys

from driver import RUNTIME_DIRECTORY, Slot

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../support/fake_cuda.c"))
DEADLINE_SECONDS = 60

# For code that `FakeGpu.python` runs: our modules, and calls to the driver that are not ours.
_PRELUDE = """
import ctypes, importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("private", %r + "/private.py")
private = importlib.util.module_from_spec(spec)
spec.loader.exec_module(private)
modules = private.PrivateModules(%r)
cuda, memory = modules.load("cuda"), modules.load("memory")
Driver, CudaError = cuda.Driver, cuda.CudaError

def raw(name, *arguments):
    return ctypes.CDLL("libcuda.so.1")[name](*arguments)

def failure_of(work, *arguments):
    try:
        work(*arguments)
    except CudaError as error:
        return [error.name, error.text, error.call]

def allocate(size, function="cuMemAlloc_v2"):
    address, context = ctypes.c_uint64(), ctypes.c_void_p()
    assert raw("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0) == 0
    assert raw("cuCtxPushCurrent_v2", context) == 0
    assert raw(function, ctypes.byref(address), ctypes.c_size_t(size)) == 0
    assert raw("cuCtxPopCurrent_v2", ctypes.byref(context)) == 0
    return address.value

def sealed_blob(content):
    writer = memory.sealed_copy(content)
    blob = memory.Blob(writer.fd, True)
    blob.uses_left = 1
    return blob

def content_of(writer):
    writer.seal()
    return os.pread(writer.fd, writer.size_bytes + 1, 0)

def say(value):
    print(json.dumps(value))
"""


class FakeGpu:
    """One build of the fake driver, and a log of what was called."""

    def __init__(self, directory):
        self._directory = str(directory)
        self._log = os.path.join(self._directory, "log")
        compiler = os.environ.get("CC", "cc")
        warnings = ["-Wall", "-Wextra", "-Werror"]
        library = os.path.join(self._directory, "libcuda.so.1")
        subprocess.run([compiler, "-std=c11", *warnings, "-shared", "-fPIC", "-o", library, SOURCE], check=True)

    def environment(self, **more):
        return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": self._directory, "FAKE_CUDA_LOG": self._log, **more}

    def python(self, code, **environment):
        """What `code` says, in a Python of its own."""
        self.forget()
        code = _PRELUDE % (RUNTIME_DIRECTORY, RUNTIME_DIRECTORY) + code
        done = subprocess.run(
            [sys.executable, "-B", "-c", code],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def slot(self, root, **more):
        fake_zygote = os.path.join(os.path.dirname(__file__), "fake_zygote.py")
        library_path = "LD_LIBRARY_PATH=" + self._directory
        command = ["env", library_path, sys.executable, "-B", "-s", fake_zygote, RUNTIME_DIRECTORY, str(root)]
        slot = Slot(root, command=command, environment=self.environment(), **more)
        assert slot.hello["type"] == "zygote_ready", slot.hello
        return slot

    def forget(self):
        open(self._log, "w").close()

    @property
    def calls(self):
        with open(self._log) as file:
            return file.read().splitlines()
