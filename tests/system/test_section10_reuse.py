"""Contract sections 10 and 11: a worker process that serves more than one program, where the operator chose that."""

from __future__ import annotations

import pytest

from harness import Program, Server, call, running_server

# How many programs this process has served, this one included: what a program changes in an installed module stays.
SERVED = (
    "import string\n"
    "def served():\n"
    "    string.served = getattr(string, 'served', 0) + 1\n"
    "    return string.served\n"
)
COUNT = SERVED + "def main(): return served()\n"

# name: what one program does, what the next one returns (printing nothing), and what that must be.
CHANGES = {
    "closed streams": ("sys.stdout.close(); sys.stderr.close()", "sys.stdout.flush(); return sys.stdout.closed", False),
    "detached streams": ("sys.stdout.detach()", "sys.stdout.flush(); return sys.stdout.encoding", "utf-8"),
    "reconfigured streams": ("sys.stdout.reconfigure(encoding='ascii', write_through=False)", "return sys.stdout.encoding", "utf-8"),
    "time zone": ("os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()", "return str(datetime.datetime.fromtimestamp(0))", "1970-01-01 00:00:00"),
    "temporary directory": ("os.mkdir('t'); os.environ['TMPDIR'] = os.path.abspath('t'); tempfile.gettempdir()", "os.mkdir(tempfile.mkdtemp() + '/x')", None),
    "wakeup descriptor": (
        "r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w); os.close(r); os.close(w)",
        "files = [os.open(str(n), os.O_CREAT | os.O_RDWR) for n in range(6)]\nsignal.signal(10, lambda *a: None); os.kill(os.getpid(), 10)\ntotal = sum(os.fstat(f).st_size for f in files)\nfor f in files: os.close(f)\nreturn total",
        0,
    ),
    "import of what has no file": ("import xml.parsers.expat", "import xml.parsers.expat.errors\nreturn 1", 1),
    "digits of integers": ("sys.set_int_max_str_digits(640)", "return len(str(10 ** 3000))", 3001),
    "stack of threads": ("threading.stack_size(1 << 40)", "t = threading.Thread(target=int); t.start(); t.join(); return 1", 1),
    "collector": ("gc.callbacks.append(lambda *a: print('left')); gc.set_threshold(1)", "gc.collect(); return gc.get_threshold()[0] > 1", True),
    "functions of sys": ("sys.exit = lambda *a: None; sys._getframe = None", "import collections; collections.namedtuple('N', 'a'); return sys.exit.__name__", "exit"),
    "environment of C": ("os.putenv('LEFT', 'x')", "return subprocess.run('echo $LEFT', shell=True, capture_output=True, text=True).stdout", "\n"),
    "environment object": ("os.environ = {}", "return type(os.environ).__name__", "_Environ"),
    "thread switches": ("sys.setswitchinterval(100)", "return sys.getswitchinterval() < 1", True),
    "pending signals": ("signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.kill(os.getpid(), 15)", "return 1", 1),
    "fast timer": ("signal.setitimer(signal.ITIMER_REAL, 0.5, 0.0001)", "return list(signal.getitimer(signal.ITIMER_REAL))", [0.0, 0.0]),
    "HOME": ("import shutil; shutil.rmtree(os.environ['HOME'])", "open(os.environ['HOME'] + '/f', 'w'); return 1", 1),
    "HOME elsewhere": (
        "home = os.environ['HOME']; os.rename(home, home + '2'); os.mkdir('mine'); os.symlink(os.path.abspath('mine'), home)",
        "return [os.path.islink(os.environ['HOME']), os.listdir(os.environ['HOME']), os.path.exists(os.environ['HOME'] + '2')]",
        [False, [], False],
    ),
    "modes": (
        "home = os.environ['HOME']; open(home + '/f', 'w')\nfor d in (home, os.path.dirname(home), '/work', '/tmp'): os.chmod(d, 0)",
        "home = os.environ['HOME']; return [oct(os.stat(d).st_mode & 0o7777) for d in (home, os.path.dirname(home), '/work', '/tmp')] + os.listdir(home)",
        ["0o700", "0o700", "0o700", "0o1777"],
    ),
    "variable of C": (
        "import ctypes; ctypes.CDLL(None).setenv(b'LANG', b'tlh', 1)",
        "return [os.environ['LANG'], subprocess.run('echo $LANG', shell=True, capture_output=True, text=True).stdout]",
        ["C.UTF-8", "C.UTF-8\n"],
    ),
    "interrupts handled by C": (
        "import ctypes; ctypes.CDLL(None).signal(2, ctypes.c_void_p(1))",
        "try: os.kill(os.getpid(), 2); time.sleep(5)\nexcept KeyboardInterrupt: return 'interrupted'",
        "interrupted",
    ),
    "a call that goes on after an interrupt": (
        "signal.siginterrupt(signal.SIGINT, False)",
        "r, w = os.pipe(); t = threading.Timer(0.2, lambda: os.kill(os.getpid(), 2)); t.start()\ntry: os.read(r, 1)\nexcept KeyboardInterrupt: t.join(); os.close(r); os.close(w); return 'interrupted'",
        "interrupted",
    ),
    "signals handled by C": (
        "import faulthandler; faulthandler.register(10)",
        "return [line for line in open('/proc/self/status') if line.startswith('SigCgt')][0].split()[1][-3]",
        "0",
    ),
    "package without a file": (
        "os.mkdir('pkg'); open('pkg/sub.py', 'w').write('V = 1'); import pkg.sub",
        "os.mkdir('pkg'); open('pkg/sub.py', 'w').write('V = 2'); import pkg.sub; return pkg.sub.V",
        2,
    ),
    "module that was made up": ("import types; sys.modules['made_up'] = types.ModuleType('made_up')", "return 'made_up' in sys.modules", False),
    "archive of modules": (
        "import zipfile; z = zipfile.ZipFile('/work/x.zip', 'w'); z.writestr('packed.py', 'V = 1'); z.close(); sys.path.insert(0, '/work/x.zip'); import packed",
        "import zipfile; z = zipfile.ZipFile('/work/x.zip', 'w'); z.writestr('more.py', 'x' * 1000 + ' = 1'); z.writestr('packed.py', 'V = 2'); z.close(); sys.path.insert(0, '/work/x.zip'); import packed; return packed.V",
        2,
    ),
    "import hooks": ("sys.meta_path.clear(); sys.path_hooks.clear()", "import colorsys; return 1", 1),
    "blocking output": ("os.set_blocking(1, False)", "return os.get_blocking(1)", True),
    "flags of SIGCHLD": (
        "import ctypes; act = (ctypes.c_ulong * 20)(0, 2); assert ctypes.CDLL(None).sigaction(17, act, None) == 0",
        "return subprocess.run(['false']).returncode",
        1,
    ),
    "rounding": ("import ctypes; ctypes.CDLL('libm.so.6').fesetround(0x800)", "return 1 / 3", 1 / 3),
    "what a finaliser changes": (
        "class D:\n    def __del__(self): signal.signal(15, print); os.environ['LEFT'] = 'x'\nd = D(); d.d = d",
        "return [signal.getsignal(15) == signal.SIG_DFL, 'LEFT' in os.environ]",
        [True, False],
    ),
    "threads that were joined": ("ts = [threading.Thread(target=int) for _ in range(20)]\nfor t in ts: t.start()\nfor t in ts: t.join()", "return 1", 1),
    "children that were waited for": ("subprocess.run(['true'])", "return 1", 1),
    "generator hooks": ("sys.set_asyncgen_hooks(firstiter=print)", "return sys.get_asyncgen_hooks()[0]", None),
}


@pytest.fixture(scope="module")
def reusing():
    with running_server("--num-workers", "1", "--standby-runtimes", "0", "--max-requests-per-worker", "0") as server:
        yield server


def served(server: Server) -> int:
    return server.run(COUNT).value()


class TestReuse:
    def test_without_it_each_program_has_a_process_of_its_own(self, server):
        assert [served(server) for _ in range(4)] == [1, 1, 1, 1]

    def test_the_same_process_serves_the_next_program(self, reusing):
        first = served(reusing)
        assert [served(reusing) for _ in range(4)] == [first + n for n in range(1, 5)]

    def test_it_is_replaced_after_its_number_of_programs(self):
        with running_server("--num-workers", "1", "--standby-runtimes", "0", "--max-requests-per-worker", "2") as server:
            assert [served(server) for _ in range(5)] == [1, 2, 1, 2, 1]

    def test_runtimes_that_stand_by_are_used_again_too(self):
        with running_server("--num-workers", "1", "--standby-runtimes", "1", "--max-requests-per-worker", "0") as server:
            assert max(served(server) for _ in range(8)) >= 4

    def test_what_a_program_did_is_put_right(self, reusing):
        leave = SERVED + (
            "import builtins, gc, os, random, signal, sys, warnings\n"
            "def main():\n"
            "    for top in ('/tmp', '/dev/shm', '/work', '/run/kcoral', os.environ['HOME']):\n"
            "        open(top + '/left', 'w').write('x')\n"
            "        os.makedirs(top + '/a/b/c'); open(top + '/a/b/c/f', 'w').close(); os.chmod(top + '/a/b', 0)\n"
            "    os.chmod('/work', 0o755)\n"
            "    os.environ['LEFT'] = 'x'; del os.environ['LANG']; os.environ['HOME'] = '/'\n"
            "    os.umask(0); os.chdir('/tmp'); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); signal.setitimer(signal.ITIMER_REAL, 1000)\n"
            "    builtins.left = 1; builtins.len = None\n"
            "    sys.path.insert(0, '/left'); sys.argv.append('left'); sys.stdout = None; sys.excepthook = None\n"
            "    sys.setrecursionlimit(200); sys.settrace(lambda *a: None); gc.disable()\n"
            "    sys.modules['__main__'].left = 1\n"
            "    open('/work/mine.py', 'w').write('x = 1'); sys.path.insert(0, '/work'); import mine\n"
            "    return served()\n"
        )
        look = SERVED + (
            "import builtins, gc, os, signal, sys\n"
            "def main():\n"
            "    found = [t for t in ('/tmp', '/dev/shm', '/work', '/run/kcoral', os.environ['HOME'])\n"
            "             if set(os.listdir(t)) - {'home', 'modules', 'libraries'}]\n"
            "    found += [oct(os.stat('/work').st_mode)] * (os.stat('/work').st_mode & 0o777 != 0o700)\n"
            "    found += ['environment'] * ('LEFT' in os.environ or os.environ.get('LANG') != 'C.UTF-8')\n"
            "    found += ['umask'] * (os.umask(0o22) != 0o22) + ['cwd'] * (os.getcwd() != os.environ['KCORAL_DIR'])\n"
            "    found += ['handler'] * (signal.getsignal(15) != signal.SIG_DFL)\n"
            "    found += ['mask'] * bool(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
            "    found += ['timer'] * (signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0))\n"
            "    found += ['builtin'] * hasattr(builtins, 'left') + ['path'] * ('/left' in sys.path)\n"
            "    found += ['argv'] * (len(sys.argv) != 1) + ['hook'] * (sys.excepthook is None)\n"
            "    found += ['limit'] * (sys.getrecursionlimit() != 1000) + ['trace'] * (sys.gettrace() is not None)\n"
            "    found += ['gc'] * (not gc.isenabled()) + ['main'] * hasattr(sys.modules['__main__'], 'left')\n"
            "    found += ['module'] * ('mine' in sys.modules)\n"
            "    found += [m for m in sys.modules if m.startswith('kcoral_upload_') and m != __name__]\n"
            "    print('seen')\n"
            "    return [served(), found]\n"
        )
        for _ in range(3):
            before = reusing.run(leave).value()
            result = reusing.run(look)
            assert result.value() == [before + 1, []]
            assert result.stdout == "seen\n"

    @pytest.mark.parametrize("change, look, wanted", CHANGES.values(), ids=CHANGES)
    def test_what_a_program_changed_is_as_it_was(self, reusing, change, look, wanted):
        def run(body: str):
            lines = "".join("    " + line + "\n" for line in body.split("\n"))
            return reusing.run("import datetime, gc, os, signal, subprocess, sys, tempfile, threading, time\ndef main():\n" + lines)

        served(reusing)
        before = served(reusing)
        changed = run(change)
        assert changed.status == "COMPLETED", changed.error
        result = run(look)
        assert (result.value(), result.stdout) == (wanted, "")
        assert served(reusing) == before + 1, "and it is the same process"

    def test_thousands_of_directories_keep_nobody_waiting(self, reusing):
        reusing.run("import os\ndef main():\n    for i in range(3000): os.makedirs('a/d%d' % i); open('a/d%d/f' % i, 'w').close()\n")
        assert reusing.run("def main(): return 1\n").document["queue_ms"] < 3000

    def test_a_slow_finaliser_keeps_nobody_waiting(self, reusing):
        reusing.run("import time\nclass D:\n    def __del__(self): time.sleep(30)\nkept = D()\ndef main(): return 1\n")
        assert reusing.run("def main(): return 1\n").document["queue_ms"] < 3000

    def test_output_belongs_to_its_program(self, reusing):
        for text in ("one", "two"):
            result = reusing.run(f"import sys\ndef main():\n    print({text!r}, end=''); sys.stderr.write({text!r})\n")
            assert (result.stdout, result.stderr) == (text, text)

    def test_the_output_limit_is_each_programs_own(self, reusing):
        loud = reusing.run("def main(): print('x' * 5000)\n", output_limit_bytes=1000)
        assert loud.document["stdout_truncated"] is True
        quiet = reusing.run("def main(): print('x' * 5000)\n")
        assert quiet.document["stdout_truncated"] is False and len(quiet.stdout) == 5001

    def test_random_numbers_are_new(self, reusing):
        draw = "import random\ndef main(): return random.random()\n"
        seeded = "import random\ndef main(): random.seed(1); return random.random()\n"
        reusing.run(seeded)
        first = reusing.run(draw).value()
        reusing.run(seeded)
        assert reusing.run(draw).value() != first

    def test_a_plain_exception_leaves_it_usable(self, reusing):
        before = served(reusing)
        assert reusing.run("def main(): raise ValueError('plain')\n").error["message"] == "plain"
        assert served(reusing) == before + 1

    @pytest.mark.parametrize(
        "leave",
        [
            "import threading, time\ndef main(): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
            "import subprocess\ndef main(): subprocess.Popen(['sleep', '1000'])\n",
            "import os\nkept = []\ndef main(): kept.append(os.open('/dev/null', 0)); os.dup2(kept[0], 77)\n",
            "import os\ndef main(): os.close(0)\n",
            "import resource\ndef main(): resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n",
            "import os\ndef main(): os.nice(3)\n",
            "import threading, time\nclass D:\n    def __del__(self): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\ndef main(): d = D(); d.d = d\n",
            "import os, time\nclass D:\n    def __del__(self):\n        if os.fork() == 0: time.sleep(1000)\ndef main(): d = D(); d.d = d\n",
            "import ctypes\ndef main():\n    timer = ctypes.c_void_p()\n    assert ctypes.CDLL(None).timer_create(1, None, ctypes.byref(timer)) == 0\n",
            "import sys\ndef main(): sys.exit(1)\n",
            "def main(): raise KeyboardInterrupt\n",
            "def main(): raise MemoryError\n",
            "import ctypes\ndef main(): assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0\n",
            "import ctypes\ndef main(): assert ctypes.CDLL(None).semget(0, 1, 0o1600) >= 0\n",
            "import ctypes\ndef main(): assert ctypes.CDLL(None).msgget(0, 0o1600) >= 0\n",
        ],
    )
    def test_what_cannot_be_put_right_costs_the_process(self, reusing, leave):
        served(reusing)
        assert served(reusing) > 1
        reusing.run(leave)
        assert served(reusing) == 1

    def test_memory_that_is_still_held_costs_the_process(self):
        with running_server(
            "--num-workers", "1", "--max-requests-per-worker", "0", "--standby-runtimes", "0", "--max-memory-bytes", "200000000"
        ) as server:  # fmt: skip
            assert [served(server), served(server)] == [1, 2]
            for megabytes, then in ((40, 3), (120, 1)):
                server.run(f"import string\ndef main(): string.kept = b'x' * ({megabytes} << 20)\n")
                assert served(server) == then

    @pytest.mark.parametrize("end", ["import os\ndef main(): os._exit(3)\n", "import os\ndef main(): os.kill(os.getpid(), 9)\n"])
    def test_a_process_that_ends_is_replaced(self, reusing, end):
        assert reusing.run(end).error["kind"] == "runtime"
        assert [served(reusing), served(reusing)] == [1, 2]

    def test_a_deadline_costs_the_process(self, reusing):
        served(reusing)
        assert reusing.post(call("import time\ndef main(): time.sleep(60)\n", timeout_seconds=2)).error(504, "timeout")
        assert served(reusing) == 1

    def test_blobs_are_given_back(self, reusing):
        memory = (
            "def main():\n"
            "    for line in open('/proc/self/status'):\n"
            "        if line.startswith('VmSize'): return int(line.split()[1])\n"
        )
        def upload() -> None:
            program = Program()
            program.add("upload", kind="bytes", id="b", blob=program.blob(b"x" * (8 << 20)))
            module = program.module("def main(b): return len(b)\n")
            program.give("n", program.call(module, "main", [{"$ref": "b"}]))
            assert reusing.execute(program).value("n") == 8 << 20

        # Twice: after the first, malloc keeps a block of this size instead of giving it back to the kernel.
        upload()
        upload()
        before = reusing.run(memory).value()
        for _ in range(4):
            upload()
        assert reusing.run(memory).value() <= before + 8 * 1024
