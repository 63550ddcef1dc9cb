"""Runs the Python side on the driver of tests/support/fake_gpu.

The built libraries are looked for in $KCORAL_BUILD_DIR, else in the newest of build/*.
"""

import glob
import json
import os
import subprocess
import sys

import pytest

from driver import RUNTIME_DIRECTORY, Slot

LIBRARY = "tests/fake_gpu/libcuda.so.1"
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


def build_directory(*needed):
    """One that has all of these files; skips the test where there is none."""
    roots = (
        [os.environ["KCORAL_BUILD_DIR"]]
        if "KCORAL_BUILD_DIR" in os.environ
        else glob.glob(RUNTIME_DIRECTORY + "/../../build/*")
    )
    found = [root for root in roots if all(os.path.exists(os.path.join(root, each)) for each in needed)]
    if not found:
        pytest.skip("not built: " + ", ".join(needed))
    return os.path.abspath(max(found, key=lambda root: os.path.getmtime(os.path.join(root, needed[0]))))


class FakeGpu:
    """The fake driver, and a log of what was called."""

    def __init__(self, directory):
        self._log = os.path.join(str(directory), "log")
        self._libraries = os.path.dirname(os.path.join(build_directory(LIBRARY), LIBRARY))

    def environment(self, **more):
        return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": self._libraries, "FAKE_GPU_LOG": self._log, **more}

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
        library_path = "LD_LIBRARY_PATH=" + self._libraries
        command = ["env", library_path, sys.executable, "-B", "-s", fake_zygote, RUNTIME_DIRECTORY, str(root)]
        slot = Slot(root, command=command, environment=self.environment(), visible_devices="0", **more)
        assert slot.hello["type"] == "zygote_ready", slot.hello
        return slot

    def forget(self):
        open(self._log, "w").close()

    @property
    def calls(self):
        with open(self._log) as file:
            return file.read().splitlines()
