"""The real thing: kcoral-init, libkcoral_sandbox.so and bubblewrap around the real zygote. Skipped where they are not
built (they are looked for in $KCORAL_BUILD_DIR, else in build/*) or where namespaces are refused.
"""

import glob
import os
import shutil
import signal
import struct
import subprocess

import pytest

from driver import RUNTIME_DIRECTORY, Slot, function, module, program, receive_frame, returns, run

MIB = 1 << 20
FILES = ("/kcoral-init", "/libkcoral_sandbox.so")
LIMITS = {
    "work_bytes": 64 * MIB,
    "tmp_bytes": 64 * MIB,
    "shm_bytes": 64 * MIB,
    "private_bytes": 64 * MIB,
    "file_size_bytes": 1024 * MIB,
    "open_files": 1024,
    "processes": 0,
    "cpu_seconds": 0,
}
ALLOW_EVERYTHING = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)  # one BPF instruction; the real filter is tested in C++


def built():
    """The directory with the newest build of kcoral-init and the library."""
    roots = (
        [os.environ["KCORAL_BUILD_DIR"]]
        if "KCORAL_BUILD_DIR" in os.environ
        else glob.glob(RUNTIME_DIRECTORY + "/../../build/*")
    )
    found = [
        path
        for path in (root + "/lib/kcoral" for root in roots)
        if all(map(os.path.exists, (path + each for each in FILES)))
    ]
    return max(found, key=lambda path: os.path.getmtime(path + "/kcoral-init"), default=None)


@pytest.fixture(scope="module")
def slot(tmp_path_factory):
    directory = built()
    if directory is None or not shutil.which("bwrap"):
        pytest.skip("kcoral-init and libkcoral_sandbox.so are not built, or there is no bubblewrap")
    root = tmp_path_factory.mktemp("sandbox")
    ours = root / "kcoral"
    ours.mkdir()
    shutil.copy(directory + "/kcoral-init", ours / "init")
    shutil.copy(directory + "/libkcoral_sandbox.so", ours)
    shutil.copytree(RUNTIME_DIRECTORY, ours / "python")
    subprocess.run(["chmod", "-R", "a+rX", str(ours)], check=True)
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--chdir", "/"]
    command += ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"]
    for name in ("bin", "lib", "lib64"):
        command += ["--symlink", "usr/" + name, "/" + name] if os.path.islink("/" + name) else []
    command += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--dir", "/work", "--dir", "/run/kcoral"]
    command += ["--ro-bind", str(ours), "/kcoral"]
    command += ["/kcoral/init", "zygote", "--", "/usr/bin/python3", "-B", "-s", "/kcoral/python/zygote.py"]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]
        for parent in [root, *root.parents][:3]:  # pytest closes its directories to other users
            parent.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin"}
    slot = Slot(
        root, preload=(), command=command, environment=environment, limits=LIMITS, seccomp_filter=ALLOW_EVERYTHING
    )
    if slot.hello["type"] != "zygote_ready":
        pytest.skip("no sandbox here: " + slot.hello["message"])
    yield slot
    slot.close()


def test_a_program_in_its_namespaces(slot):
    source = """
import os
def f():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    return [os.getpid(), sorted(int(n) for n in os.listdir("/proc") if n.isdigit()), os.getcwd(), os.listdir("/work"),
            int(status["CapEff"], 16), int(status["NoNewPrivs"]), int(status["Seccomp"]), os.environ["HOME"],
            sorted(os.listdir("/proc/self/fd"), key=int)[:4]]
"""
    outcome = slot.run(program(source))
    assert not outcome.error, outcome.error
    wire = outcome.returned["result"].wire["value"]
    values = [each["value"] if each["type"] != "array" else [item["value"] for item in each["value"]] for each in wire]
    assert values[:8] == [2, [1, 2], "/work", [], 0, 1, 2, "/run/kcoral/home"]
    assert values[8] == ["0", "1", "2", "3"]  # 3: the listing itself


def test_nothing_is_left_for_the_next_program(slot):
    source = """
import os
def f():
    seen = [os.listdir(d) for d in ("/work", "/tmp", "/dev/shm", os.environ["HOME"])]
    for d in ("/work", "/tmp", "/dev/shm", os.environ["HOME"]):
        open(d + "/left", "w").close()
    if os.fork() == 0:
        os.setsid()
        import time; time.sleep(1000)
    return sum(seen, [])
"""
    for _ in range(3):
        assert slot.run(program(source)).returned["result"].wire == {"type": "array", "value": []}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(slot, method):
    source = "import multiprocessing\ndef square(x): return x * x\ndef f():\n"
    source += (
        "    with multiprocessing.get_context(%r).Pool(2) as pool: return sum(pool.map(square, range(5)))\n" % method
    )
    outcome = slot.run(program(source))
    assert outcome.returned["result"].wire["value"] == 30, outcome.error


def test_the_end_of_init_ends_everything(slot):
    ours, out, err, pidfds, id = slot.prepare()
    assert receive_frame(ours)[0] == {"type": "ready"}
    signal.pidfd_send_signal(pidfds[0], signal.SIGKILL)
    ends = [receive_frame(slot.control)[0] for _ in range(2)]
    assert all(end["id"] == id and end["signal"] == 9 for end in ends)
    assert os.read(out, 1) == b"" and os.read(err, 1) == b""
    ours.close()
    for fd in (out, err, *pidfds):
        os.close(fd)


def test_files_and_modules(slot):
    outcome = slot.run(
        [
            module("import inspect\ndef f():\n    open('x', 'w').write(inspect.getsource(f))\n"),
            function("f"),
            run("f"),
            {"op": "return", "key": "x", "kind": "file", "path": "x"},
            returns(),
        ]
    )
    assert outcome.returned["x"].parts[0].startswith(b"def f():") and outcome.completed


def test_a_program_that_fills_its_directory(slot):
    outcome = slot.run(program("def f():\n    open('x', 'wb').write(bytes(100 << 20))\n"))
    assert outcome.error["kind"] == "runtime" and "No space left" in outcome.error["message"]
