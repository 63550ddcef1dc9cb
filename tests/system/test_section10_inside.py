"""Contract section 10: a program sees what a script started fresh would see, and nothing of anybody else."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Program, Server, call, running_server, wait_until


def see(server: Server, expression: str, imports: str = "os, sys"):
    return server.run(f"import {imports}\ndef main():\n    return {expression}\n").value()


class TestSurroundings:
    def test_the_working_directory_is_its_own_and_empty(self, server):
        assert see(server, "[os.getcwd() == os.environ['KCORAL_DIR'], os.listdir('.')]") == [True, []]

    def test_the_environment_is_an_allow_list(self, server):
        names = set(see(server, "sorted(os.environ)"))
        needed = {"PATH", "HOME", "TMPDIR", "USER", "LANG", "TZ", "KCORAL_DIR", "CUDA_VISIBLE_DEVICES"}
        assert needed <= names
        assert names - needed <= {"LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "PWD", "SHLVL", "LOGNAME", "VIRTUAL_ENV", "PYTHONPATH"}
        values = see(server, "[os.environ[n] for n in ('LANG', 'TZ', 'CUDA_VISIBLE_DEVICES')]")
        assert values == ["C.UTF-8", "UTC", ""]

    def test_what_the_operator_passes(self):
        with running_server("--env", "TEAM=kernels and more", environment={"SECRET": "of the server"}) as server:
            assert see(server, "[os.environ.get('TEAM'), os.environ.get('SECRET')]") == ["kernels and more", None]

    def test_home_and_tmpdir_are_private_and_writable(self, server):
        source = (
            "import os, pwd, tempfile\ndef main():\n"
            "    open(os.path.expanduser('~/x'), 'w').write('1')\n"
            "    with tempfile.NamedTemporaryFile() as f: f.write(b'2')\n"
            "    entry = pwd.getpwuid(os.getuid())\n"
            "    return [entry.pw_name == os.environ['USER'], entry.pw_dir == os.environ['HOME'], os.listdir(os.environ['TMPDIR'])]\n"
        )
        assert server.run(source).value() == [True, True, []]

    def test_stdin_is_at_its_end(self, server):
        assert see(server, "[sys.stdin.read(), os.read(0, 10)]") == ["", b""]

    def test_streams_are_ordinary_files(self, server):
        assert see(server, "[sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.encoding]") == [1, 2, "utf-8"]

    def test_umask_and_signals_are_the_defaults(self, server):
        expression = "[os.umask(0), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()]"
        assert see(server, expression, "os, signal") == [0o022, True, True, True]

    def test_main_exists_and_argv_is_bare(self, server):
        assert see(server, "[sys.modules['__main__'].__name__, len(sys.argv)]") == ["__main__", 1]

    def test_no_descriptor_of_ours_is_open_but_the_streams_and_one_socket(self, server):
        kinds = see(server, "sorted(os.readlink(f'/proc/self/fd/{n}').split(':')[0] for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists(f'/proc/self/fd/{n}'))")
        assert [kind for kind in kinds if kind != "/proc/self/fd" and not kind.startswith("/proc/")] in ([], ["socket"]), kinds


class TestLikeAScript:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing(self, server, method):
        source = (
            "import multiprocessing\n\ndef square(x):\n    return x * x\n\ndef main():\n"
            f"    with multiprocessing.get_context('{method}').Pool(2) as pool:\n        return pool.map(square, range(5))\n"
        )
        assert server.run(source).value() == [0, 1, 4, 9, 16]

    def test_threads_and_subprocesses(self, server):
        source = (
            "import concurrent.futures, subprocess, sys\ndef main():\n"
            "    with concurrent.futures.ThreadPoolExecutor(4) as pool: sums = list(pool.map(sum, [[1], [1, 2]]))\n"
            "    return sums + [subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'], text=True)]\n"
        )
        assert server.run(source).value() == [1, 3, "42\n"]

    def test_dataclasses_pickling_and_type_hints(self, server):
        source = (
            "from __future__ import annotations\nimport dataclasses, pickle, typing\n"
            "@dataclasses.dataclass\nclass Point:\n    x: int\n    next: Point | None = None\n\n"
            "def main():\n    point = pickle.loads(pickle.dumps(Point(1, Point(2))))\n"
            "    return [point.next.x, typing.get_type_hints(Point)['x'] is int]\n"
        )
        assert server.run(source).value() == [2, True]

    def test_generators_are_seeded_anew(self, server):
        source = "import numpy, os, random, uuid\ndef main():\n    return [random.random(), float(numpy.random.rand()), str(uuid.uuid4())]\n"
        seen = [server.run(source).value() for _ in range(6)]
        for column in zip(*seen):
            assert len(set(column)) == len(seen)

    def test_parallel_numpy_work(self, server):
        source = "import numpy\ndef main():\n    a = numpy.ones((600, 600))\n    return float((a @ a).sum())\n"
        assert server.run(source).value() == 600.0**3


class TestSandbox:
    """Never uid 0, also when the server is root; nothing of the host or of other slots within reach."""

    @pytest.mark.parametrize(
        "body, errors",
        [
            ("open('/etc/shadow').read()", "PermissionError FileNotFoundError"),
            ("open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/true')", "PermissionError OSError"),
            ("open('/proc/sys/vm/overcommit_memory', 'w').write('1')", "PermissionError OSError"),
            ("open('/usr/lib/kcoral-was-here', 'w')", "OSError PermissionError"),
            ("open('/kcoral/python/runtime.py', 'a')", "OSError PermissionError"),
            ("os.setuid(0)", "PermissionError OSError"),
            ("os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))", "PermissionError"),
            ("os.chroot('/tmp')", "PermissionError"),
            ("os.sethostname('mine') if hasattr(os, 'sethostname') else socket.sethostname('mine')", "PermissionError OSError"),
            ("socket.create_connection(('127.0.0.1', 80), 1)", "ConnectionRefusedError OSError"),
            ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW)", "PermissionError"),
        ],
    )
    def test_refused(self, server, body, errors):
        source = (
            "import os, socket\ndef main():\n    try:\n"
            f"        {body}\n    except Exception as error:\n        return type(error).__name__\n    return 'it worked'\n"
        )
        assert server.run(source).value() in errors.split()

    def test_not_uid_0_and_no_capabilities(self, server):
        source = (
            "import os\ndef main():\n    status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
            "    return [os.getuid(), os.geteuid(), status['CapEff'], status['CapPrm'], status['CapAmb'], status['NoNewPrivs'], status['Seccomp']]\n"
        )
        uid, euid, *rest = server.run(source).value()
        assert uid == euid != 0
        assert rest == ["0" * 16, "0" * 16, "0" * 16, "1", "2"]

    def test_new_namespaces_are_refused(self, server):
        source = (
            "import ctypes\ndef main():\n    libc = ctypes.CDLL(None, use_errno=True)\n"
            "    return [(libc.unshare(flag), ctypes.get_errno()) for flag in (0x10000000, 0x20000, 0x20000000)]\n"
        )
        assert server.run(source).value() == [[-1, 1]] * 3

    def test_it_is_the_first_to_end_when_the_machine_runs_out_of_memory(self, server):
        assert see(server, "open('/proc/self/oom_score_adj').read().strip()") == "1000"

    def test_it_sees_only_its_own_processes(self, server):
        names = see(server, "[open(f'/proc/{n}/comm').read().strip() for n in os.listdir('/proc') if n.isdigit()]")
        assert len(names) == 2 and "kcoral-init" in names

    def test_the_data_directory_is_out_of_reach(self, server):
        paths = [str(server.data_dir), str(server.data_dir.parent), "/root", "/home"]
        for path in paths:
            assert see(server, f"os.path.isdir({path!r}) and os.listdir({path!r})") in (False, [])

    def test_shared_memory_and_tmp_are_of_limited_size(self, server):
        source = "import os\ndef main():\n    return [os.statvfs(p).f_blocks * os.statvfs(p).f_frsize for p in ('/tmp', '/dev/shm', '.')]\n"
        assert all(0 < size <= 2**35 for size in server.run(source).value())


class TestNothingTravels:
    """100 programs one after another, each looking for what the one before it left behind."""

    SOURCE = """
import builtins, json, math, os, signal, subprocess, sys, threading

def look():
    found = []
    if getattr(builtins, "LEFT", None): found.append("builtin")
    if getattr(math, "left", None): found.append("module attribute")
    if json.dumps is not sys.modules["json"].__dict__["dumps"] or json.dumps([1]) != "[1]": found.append("patched function")
    if "left_module" in sys.modules: found.append("sys.modules")
    if "LEFT" in os.environ: found.append("environment")
    if os.path.basename(os.getcwd()) == "elsewhere": found.append("working directory")
    for directory in (".", "/tmp", "/dev/shm", os.path.expanduser("~")):
        if any(name.startswith("left") for name in os.listdir(directory)): found.append("file in " + directory)
    if len([n for n in os.listdir("/proc") if n.isdigit()]) > 2: found.append("process")
    if os.umask(0o022) != 0o022: found.append("umask")
    if signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL: found.append("signal handler")
    if subprocess.run(["ipcs", "-m"], capture_output=True, text=True).stdout.count("0x") > 0: found.append("shared memory")
    if threading.active_count() > 1: found.append("thread")
    if sys.getrecursionlimit() != 1000: found.append("recursion limit")
    if len(sys.argv) > 1: found.append("argv")
    return found

def leave():
    builtins.LEFT = True
    math.left = True
    json.dumps = lambda *a, **k: "patched"
    sys.modules["left_module"] = sys
    os.environ["LEFT"] = "1"
    for directory in (".", "/tmp", "/dev/shm", os.path.expanduser("~")):
        open(os.path.join(directory, "left"), "w").write("x")
    os.mkdir("elsewhere"); os.chdir("elsewhere")
    os.umask(0o077)
    signal.signal(signal.SIGUSR1, lambda *a: None)
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    subprocess.run(["ipcmk", "-M", "4096"], capture_output=True)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    sys.setrecursionlimit(5000)
    sys.argv.append("left")

def main():
    found = look()
    leave()
    return found
"""

    def test_100_programs(self, server):
        for round in range(100):
            assert server.run(self.SOURCE).value() == [], f"round {round}"


class TestPatchingHurtsOnlyOneself:
    """The answer still comes, true or as an error, and soon; the next program is unharmed."""

    @pytest.mark.parametrize(
        "patch",
        [
            "builtins.len = None",
            "builtins.isinstance = lambda *a: True",
            "builtins.type = builtins.str = builtins.dict = builtins.list = None",
            "builtins.__import__ = None",
            "builtins.open = builtins.print = None",
            "builtins.BaseException = builtins.Exception = None",
            "builtins.__dict__.clear()",
            "json.dumps = json.loads = None",
            "json.encoder.encode_basestring = json.encoder.encode_basestring_ascii = None",
            "os.write = os.read = os.open = os.memfd_create = os._exit = os.getpid = None",
            "socket.socket.send = socket.socket.sendmsg = socket.socket.recv = None",
            "traceback.format_exception = traceback.TracebackException = linecache.getline = None",
            "sys.modules.clear()",
            "sys.setrecursionlimit(40)",
            "sys.stdout = sys.stderr = None",
            "sys.stdout = object()",
            "sys.settrace(lambda *a: 1 / 0)",
            "sys.setprofile(lambda *a: 1 / 0)",
            "gc.callbacks.append(lambda *a: 1 / 0)",
            "threading.Thread = threading.Lock = None",
            "hashlib.sha256 = fcntl.fcntl = struct.pack = None",
            "os.close(0); os.close(1); os.close(2)",
        ],
    )
    @pytest.mark.parametrize("ending", ["return {'answer': [42, b'bytes']}", "raise ValueError('true error')"])
    def test_patch(self, server, patch, ending):
        source = (
            "import builtins, fcntl, gc, hashlib, json, json.encoder, linecache, os, socket, struct, sys, threading, traceback\n"
            f"def main():\n    {patch}\n    {ending}\n"
        )
        result = server.run(source, timeout_seconds=30)
        assert result.document["elapsed_ms"] < 10_000
        if result.status == "COMPLETED":
            assert "return" in ending and result.value() == {"answer": [42, b"bytes"]}
        else:
            assert result.error["message"]
            if "raise" in ending:
                assert result.error["kind"] == "runtime"
        assert server.run("def main():\n    return len([1, 2])\n").value() == 2

    def test_closing_every_descriptor_ends_only_that_program(self, server):
        result = server.run("import os\ndef main():\n    os.closerange(0, 65536)\n    return 1\n", timeout_seconds=30)
        assert result.status == "FAILED" and result.error["message"]
        assert server.run("def main():\n    return 2\n").value() == 2


def test_files_of_a_request_are_gone_afterwards(server: Server):
    program = Program()
    program.add("upload", id="f", kind="file", blob=program.blob(b"x"), path="mine.txt")
    program.give("seen", program.call(program.module("import os\ndef main():\n    return os.listdir('.')\n"), "main"))
    assert server.execute(program).value("seen") == ["mine.txt"]
    assert see(server, "os.listdir('.')") == []


class TestAttacksOnNeighbours:
    """What one program does to the user, the group and the network that it shares with the slot's next one."""

    @pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL", "SIGUSR1", "SIGSTOP", "SIGINT"])
    @pytest.mark.parametrize("target", ["os.killpg(os.getpgrp(), {0})", "os.kill(0, {0})", "os.kill(os.getppid(), {0})"])
    def test_signals_to_its_own_group_end_only_itself(self, server, number, target):
        kill = target.format(f"signal.{number}")
        source = f"import os, signal\ndef main():\n    {kill}\n    return 'alive'\n"
        reply = server.post(call(source, timeout_seconds=5))
        if number == "SIGSTOP":
            assert reply.error(504, "timeout")
        else:
            assert reply.result().error["kind"] == "runtime"
        for _ in range(2):
            assert server.run("def main():\n    return 1\n").value() == 1

    def test_a_session_and_group_of_its_own(self, server):
        assert see(server, "os.getpid() == os.getpgrp() == os.getsid(0)") is True

    def test_no_port_is_kept_from_the_next_program(self, server):
        source = (
            "import socket\ndef main():\n"
            "    listener = socket.socket(); listener.bind(('127.0.0.1', 5000)); listener.listen()\n"
            "    client = socket.create_connection(('127.0.0.1', 5000)); served, _ = listener.accept()\n"
            "    served.close(); client.close(); listener.close()\n"
        )
        for _ in range(6):
            assert server.run(source).status == "COMPLETED"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root can give each slot a user of its own")
    def test_descriptors_in_flight_harm_nobody_else(self, server):
        hog = call(
            "import os, resource, socket, time\ndef main():\n"
            "    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\n"
            "    null = os.open('/dev/null', os.O_RDONLY); pairs = []\n"
            "    try:\n"
            "        for _ in range(400):\n"
            "            pairs.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))\n"
            "            while True:\n"
            "                try: socket.send_fds(pairs[-1][0], [b'x'], [null] * 250, socket.MSG_DONTWAIT)\n"
            "                except BlockingIOError: break\n"
            "    except OSError as error: print(error.errno, flush=True)\n"
            "    time.sleep(3)\n",
            timeout_seconds=30,
        )
        thread = threading.Thread(target=server.post, args=(hog,))
        thread.start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the hog runs")
        while thread.is_alive():
            assert server.run("def main():\n    return b'123'\n", timeout_seconds=2).value() == b"123"
        thread.join()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root can give each slot a user of its own")
    def test_each_slot_has_a_user_of_its_own(self, server):
        source = "import os, time\ndef main():\n    time.sleep(0.5)\n    return [os.getuid(), os.path.expanduser('~') == os.environ['HOME']]\n"
        uids = set()
        for _ in range(10):
            with ThreadPoolExecutor(2) as clients:
                for uid, has_home in clients.map(lambda _: server.run(source).value(), range(2)):
                    assert uid != 0 and has_home
                    uids.add(uid)
            if len(uids) == 2:
                break
        assert len(uids) == 2

    def test_a_socket_that_lingers_does_not_hold_the_executor(self, server):
        source = (
            "import array, os, socket, struct, time\ndef main():\n"
            "    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen()\n"
            "    client = socket.create_connection(listener.getsockname()); served, _ = listener.accept()\n"
            "    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 600)); client.setblocking(False)\n"
            "    try:\n        while True: client.send(b'x' * 65536)\n    except BlockingIOError: pass\n"
            "    channel = socket.socket(fileno=os.dup(1000))\n"
            "    socket.send_fds(channel, [b'{\"type\":\"lease_release\",\"index\":2}'], [client.fileno()])\n"
            "    client.close(); time.sleep(60)\n"
        )
        reply = server.post(call(source, timeout_seconds=3))
        assert reply.status in (200, 504) and reply.json()["status"] != "COMPLETED"
        assert server.run("def main():\n    return 1\n").document["elapsed_ms"] < 30_000

    def test_a_value_whose_methods_raise_anything_is_a_serialization_error(self, server):
        source = (
            "import sys\nclass Odd:\n    def __dlpack__(self, **k): sys.exit(3)\n    def __dlpack_device__(self): sys.exit(4)\n"
            "def main():\n    return Odd()\n"
        )
        assert server.run(source).error["kind"] == "serialization"

    def test_a_source_may_begin_with_a_byte_order_mark(self, server):
        assert server.run("\ufeffdef main():\n    return 1\n").value() == 1
