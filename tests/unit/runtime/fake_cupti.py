"""The fake GPU of tests/support/fake_gpu for Python: an installation beside it, and processes that find it."""

import json
import os
import shutil
import subprocess
import sys

from driver import RUNTIME_DIRECTORY
from fake_gpu import build_directory

PROCESS_SECONDS = 60
NEEDED = ("lib/kcoral/libkcoral_timing.so", "tests/fake_gpu/libcuda.so.1", "tests/fake_gpu/libcupti.so.13")

# What programs of these tests begin with: `gpu` launches work on the fake GPU.
PRELUDE = """
import ctypes, json, os, sys
class Gpu:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.fake_gpu_state.restype = ctypes.c_int64
    def kernel(self, us=5.0, name=b"kernel", stream=0, grid=1):
        self.library.fake_gpu_launch(name, grid, ctypes.c_uint64(int(us * 1000)), ctypes.c_uint64(stream))
    def state(self, name):
        return self.library.fake_gpu_state(name.encode())
"""


class FakeGpu:
    """An installation of the Python side beside the built library, and the directory of the fakes."""

    def __init__(self, directory):
        root = build_directory(*NEEDED)
        self.directory = str(directory)
        self.runtime = self.directory + "/python"
        self.libraries = os.path.join(root, "tests/fake_gpu")
        shutil.copytree(RUNTIME_DIRECTORY, self.runtime)
        shutil.copy(os.path.join(root, NEEDED[0]), self.directory)

    def run(self, source, libraries=None, path=(), **environment):
        """The last line that a process with `benchmark` and `gpu` prints, as JSON."""
        head = PRELUDE + "sys.path[:0] = %r\n" % [self.runtime + "/importable", *map(str, path)]
        head += "from kcoral import _timing\nfrom kcoral.builtins import Unavailable, benchmark\n"
        done = subprocess.run(
            # Without site-packages, whose CUPTI would be a real one.
            [sys.executable, "-S", "-c", head + source],
            env={
                "PATH": os.environ["PATH"],
                "LD_LIBRARY_PATH": libraries or self.libraries,
                "CUDA_HOME": "/nonexistent",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.strip().split("\n")[-1])
