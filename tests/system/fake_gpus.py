"""GPUs for a real server on a machine that has none (tests/support/fake_gpu).

Theory of operation. The server and the programs find the fake libraries as they would find the real ones: through
LD_LIBRARY_PATH. Device nodes are ordinary files, shown in a /dev of the server's own in a mount namespace: that takes
root. What the devices are like stands in a file that a test may rewrite while the server runs.

Programs see the directory of the fakes, so a test can tell them something by making a file there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Iterator

import pytest

from harness import BUILD, KCORAL, PATIENCE_S, Program, Reply, Server, call, running_server, wait_until

LIBRARIES = ("libcuda.so.1", "libcupti.so.13", "libnvidia-ml.so.1")

# Below /dev everything that bubblewrap needs, and the files of the second directory.
_WITH_NODES = """
set -e
dev=$1
nodes=$2
shift 2
mount -t tmpfs -o mode=755 fake-dev "$dev"
for name in null zero full random urandom tty; do
  : >"$dev/$name"
  mount --bind "/dev/$name" "$dev/$name"
done
ln -s /proc/self/fd "$dev/fd"
for node in "$nodes"/*; do
  : >"$dev/${node##*/}"
  mount --bind "$node" "$dev/${node##*/}"
done
mount --rbind "$dev" /dev
exec "$@"
"""


@dataclass
class Device:
    minor: int
    arch: str = "9.0"
    mib: int = 81920
    used_mib: int = 500
    name: str = "NVIDIA Fake"
    processes: dict[int, str] = field(default_factory=dict)  # pid to MiB; "?" if the driver does not tell


class FakeGpus:
    """Some devices. What is assigned here holds once `tell` was called."""

    def __init__(self, directory: pathlib.Path, nodes: pathlib.Path, minors: list[int]):
        """`directory`: what the server and its programs see. `nodes`: of the devices; on a tmpfs, where the kernel
        names a locked file as `stat` does."""
        self.directory = directory
        self.devices = [Device(minor) for minor in minors]
        self.faults: dict[str, int] = {}
        self.more_environment: dict[str, str] = {}  # of the server alone
        self._nodes = nodes
        for node in ["nvidiactl", "nvidia-uvm", *[f"nvidia{minor}" for minor in minors]]:
            (nodes / node).touch()
            (nodes / node).chmod(0o666)
        (directory / "dev").mkdir()
        for library in LIBRARIES:
            shutil.copy(BUILD / "tests" / "fake_gpu" / library, directory)
        self.tell()

    @property
    def environment(self) -> dict[str, str]:
        """Of the server, and of its programs."""
        return {"LD_LIBRARY_PATH": str(self.directory), "FAKE_GPU_CONFIG": str(self.directory / "config")}

    @property
    def prefix(self) -> list[str]:
        """Starts a program beside the device nodes."""
        return ["unshare", "--mount", "sh", "-c", _WITH_NODES, "sh", str(self.directory / "dev"), str(self._nodes)]

    @property
    def flags(self) -> list[str]:
        shown = [f"{name}={value}" for name, value in self.environment.items()]
        return ["--expose", str(self.directory), *[word for each in shown for word in ("--env", each)]]

    def tell(self) -> None:
        """At once and as a whole, whoever reads it."""
        lines = []
        for number, device in enumerate(self.devices):
            lines.append(
                f"device minor={device.minor} arch={device.arch} mib={device.mib} used_mib={device.used_mib} "
                f"name={device.name}"
            )
            lines += [f"process {number} {pid} {mib}" for pid, mib in device.processes.items()]
        lines += [f"fault {name} {value}" for name, value in self.faults.items()]
        fresh = self.directory / "config.new"
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self.directory / "config")

    def users_of(self, minor: int) -> list[int]:
        """Processes that have a context on it: they hold a lock on its node."""
        node = os.stat(self._nodes / f"nvidia{minor}")
        name = f"{os.major(node.st_dev):02x}:{os.minor(node.st_dev):02x}:{node.st_ino}"
        locks = [line.split() for line in pathlib.Path("/proc/locks").read_text().splitlines()]
        return [int(fields[4]) for fields in locks if fields[1] == "POSIX" and fields[5] == name]

    def say(self, word: str) -> None:
        """Programs that wait for it go on."""
        (self.directory / word).touch()

    @contextlib.contextmanager
    def server(self, *flags: str) -> Iterator[Server]:
        environment = {**self.environment, **self.more_environment}
        more: dict[str, Any] = {"environment": environment, "prefix": self.prefix, "device": None}
        with running_server(*self.flags, *flags, **more) as server:
            yield server

    def command(self, *flags: str, data_dir: str) -> list[str]:
        return [*self.prefix, str(KCORAL), "server", "--port", "0", "--data-dir", data_dir, *flags]

    @property
    def server_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment, **self.more_environment}

    def complaint(self, *flags: str) -> str:
        """The one clear line of a server that could not start."""
        return self.complaint_of(self.start(*flags))

    def start(self, *flags: str) -> subprocess.Popen[str]:
        """A server that is not expected to become ready."""
        return subprocess.Popen(
            self.command(*flags, data_dir=tempfile.mkdtemp(dir=self.directory.parent)),
            env=self.server_environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def complaint_of(self, process: subprocess.Popen[str]) -> str:
        out, err = process.communicate(timeout=PATIENCE_S)
        lines = [line for line in err.splitlines() if line.startswith("kcoral server: ")]
        assert (process.returncode, len(lines), out) == (1, 1, ""), (process.returncode, out, err)
        return lines[0]


@contextlib.contextmanager
def fake_gpus(*minors: int) -> Iterator[FakeGpus]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("device nodes of its own need root, and mounts")
    # Programs have a /tmp of their own, in which nothing of the host can be shown.
    with contextlib.ExitStack() as stack:
        made = [tempfile.TemporaryDirectory(prefix="kcoral-fake-gpus-", dir=dir) for dir in ("/var/tmp", "/dev/shm")]
        directory, nodes = (pathlib.Path(stack.enter_context(each)) for each in made)
        directory.chmod(0o755)
        (directory / "shown").mkdir()
        yield FakeGpus(directory / "shown", nodes, list(minors))


# Functions for programs: what they wait for, the test says (FakeGpus.say).
SOURCE = """
import ctypes, os, time
DIRECTORY = %r

def hold(word):
    "From when to when it ran."
    began = time.monotonic()
    while not os.path.exists(DIRECTORY + "/" + word):
        time.sleep(0.001)
    return [began, time.monotonic()]

def hold_context(word):
    Cuda().allocate(1 << 20)
    return hold(word)

def spin(seconds):
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        pass
    return [began, time.monotonic()]

def die(word):
    hold(word)
    os.kill(os.getpid(), 9)

class Cuda:
    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        assert self.driver.cuInit(0) == 0
    def devices(self):
        count = ctypes.c_int()
        assert self.driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        return count.value
    def allocate(self, size, device=0):
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.driver.cuCtxPushCurrent_v2(context) == 0
        assert self.driver.cuMemAlloc_v2(ctypes.byref(address), size) == 0

def nodes():
    return sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))

def what_it_sees():
    return [os.environ["CUDA_VISIBLE_DEVICES"], Cuda().devices(), nodes()]
"""


class Pending:
    """A program that was sent, and whose answer is awaited beside the test."""

    def __init__(self, server: Server, program: Program, id: str | None = None):
        self.id = id or str(uuid.uuid4())
        self._reply: list[Reply] = []
        self._thread = threading.Thread(target=self._post, args=(server, program), daemon=True)
        self._thread.start()

    def _post(self, server: Server, program: Program) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server was killed
            self._reply.append(server.post(program, X_Request_ID=self.id))

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def reply(self) -> Reply:
        self._thread.join(PATIENCE_S)
        assert self._reply, "no answer"
        return self._reply[0]

    def value(self, key: str = "value") -> Any:
        return self.reply().result().value(key)


class GpuServer:
    """A running server and its fake devices."""

    def __init__(self, server: Server, gpus: FakeGpus):
        self.server = server
        self.gpus = gpus
        self.source = SOURCE % str(gpus.directory)

    def begin(self, function: str, *args: Any, **options: Any) -> Pending:
        return Pending(self.server, call(self.source, function, list(args), **{"timeout_seconds": 30, **options}))

    def send(self, program: Program) -> Pending:
        return Pending(self.server, program)

    def hold(self, function: str = "hold", **options: Any) -> tuple[Pending, str]:
        """A program that has its lease until the word is said."""
        word = f"go-{uuid.uuid4()}"
        return self.begin(function, word, **options), word

    def say(self, word: str) -> None:
        self.gpus.say(word)

    def look(self) -> list[dict]:
        return json.loads(self.server.request("GET", "/gpus").body)["gpus"]

    def holders(self) -> list[str | None]:
        """Of each device, the request."""
        return [gpu["holder"] and gpu["holder"]["request_id"] for gpu in self.look()]

    def wait_for_holder(self, pending: Pending) -> int:
        """The index of its device, once it has one."""

        def found() -> list[str | None] | None:
            holders = self.holders()
            return holders if pending.id in holders else None

        return wait_until(found, f"{pending.id} holds a lease").index(pending.id)

    def wait_for_waiters(self, count: int, device: int = 0) -> None:
        wait_until(lambda: self.look()[device]["waiters"] == count, f"{count} wait for device {device}")

    def users_of(self, minor: int) -> list[int]:
        return self.gpus.users_of(minor)

    def wait_until_settled(self, contexts: int) -> None:
        """So many are there on the first device, and nobody wants one made or ended."""

        def is_settled() -> bool:
            gpu = self.look()[0]
            return (
                len(self.users_of(self.gpus.devices[0].minor)) == contexts and not gpu["holder"] and not gpu["waiters"]
            )

        wait_until(is_settled, f"{contexts} contexts are there, and nobody has the device")

    def wait_until_free(self) -> None:
        wait_until(lambda: not any(gpu["holder"] for gpu in self.look()), "every device is free")


@contextlib.contextmanager
def gpu_server(minors: list[int], *flags: str) -> Iterator[GpuServer]:
    with fake_gpus(*minors) as gpus, gpus.server(*flags) as server:
        yield GpuServer(server, gpus)
