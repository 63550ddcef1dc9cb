"""Every way to die: how each is told, that what was there before it is kept, and that the slot is ready again.

A row is the body of a function, and what its end must be called. Before it the program has returned a value and printed
a line; after it the next program must run as if nothing had been.
"""

from __future__ import annotations

import pytest

from harness import Program, Server, running_server

SIGNALS_THAT_END = (
    "SIGKILL", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL",
)  # fmt: skip

# name: (body, error kind, what the message must say)
ENDS = {
    **{f"exit {code}": (f"os._exit({code})", "runtime", f"exit code {code}") for code in (0, 3, 255)},
    **{name: (f"os.kill(os.getpid(), signal.{name})", "runtime", name) for name in SIGNALS_THAT_END},
    "sys.exit": ("sys.exit(4)", "runtime", "sys.exit(4)"),
    "sys.exit with a text": ("sys.exit('enough')", "runtime", "the program ended itself"),
    "raise SystemExit": ("raise SystemExit", "runtime", "the program ended itself"),
    "raise KeyboardInterrupt": ("raise KeyboardInterrupt", "runtime", "KeyboardInterrupt"),
    "raise an exception": ("raise ValueError('plain')", "runtime", "plain"),
    "fail an assertion": ("assert 1 == 2, 'not equal'", "correctness", "not equal"),
    "raise what has no text": ("class Odd(Exception):\n  def __str__(self): raise self\nraise Odd()", "runtime", "Odd"),
    "exec another program": ("os.execv('/bin/true', ['true'])", "runtime", "exit code 0"),
    "exec one that fails": ("os.execv('/bin/false', ['false'])", "runtime", "exit code 1"),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", "runtime", "KeyboardInterrupt"),
    "SIGALRM": ("signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)", "runtime", "SIGALRM"),
    "a signal from a child": (
        "parent = os.getpid()\nif os.fork() == 0: os.kill(parent, signal.SIGKILL); os._exit(0)\ntime.sleep(60)",
        "runtime",
        "SIGKILL",
    ),
    "a signal to the group": ("os.killpg(0, signal.SIGKILL)", "runtime", "SIGKILL"),
    "a signal to everybody": ("os.kill(-1, signal.SIGKILL); os._exit(5)", "runtime", ""),
    "abort": ("os.abort()", "runtime", "SIGABRT"),
    "a null pointer": ("ctypes.string_at(0)", "runtime", "SIGSEGV"),
    "a write to read-only memory": ("ctypes.memset(ctypes.cast(ctypes.CDLL(None).exit, ctypes.c_void_p), 0, 1)", "runtime", "SIGSEGV"),
    "free of nothing that was allocated": ("libc = ctypes.CDLL(None); libc.free(ctypes.c_void_p(64))", "runtime", "killed by signal"),
    "endless recursion": ("f = lambda: f()\nf()", "runtime", "recursion"),
    "overflow of the C stack": (
        "sys.setrecursionlimit(10 ** 9)\nclass C:\n  def __getattr__(self, n): return getattr(self, n + 'x')\nC().a",
        "runtime",
        "SIGSEGV",
    ),
    "out of address space": (
        "resource.setrlimit(resource.RLIMIT_AS, (512 << 20,) * 2)\nx = bytearray(1 << 30)",
        "runtime",
        "MemoryError",
    ),
    "out of CPU time": (
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass",
        "runtime",
        "CPU time",
    ),
    "a file beyond the limit, by the default action": (
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "os.write(os.open('f', os.O_CREAT | os.O_WRONLY), b'x' * 1000); os.write(os.open('f', os.O_APPEND | os.O_WRONLY), b'x')",
        "runtime",
        "",
    ),
    "close every descriptor": ("os.closerange(0, 65536)", "runtime", ""),
    "close the runtime's socket": ("os.close(1000)", "runtime", ""),
    "another file in place of the runtime's socket": ("os.dup2(os.open('/dev/null', os.O_RDWR), 1000)", "runtime", ""),
    "talk on the runtime's socket": (
        "s = socket.socket(fileno=os.dup(1000)); s.send(b'{\"type\":\"completed\"}'); time.sleep(60)",
        "engine",
        "out of order",
    ),
    "nonsense on the runtime's socket": (
        "s = socket.socket(fileno=os.dup(1000)); s.send(b'\\xff{'); time.sleep(60)",
        "engine",
        "",
    ),
    "shut the runtime's socket down": (
        "s = socket.socket(fileno=os.dup(1000)); s.shutdown(socket.SHUT_RDWR); time.sleep(60)",
        "runtime",
        "closed the connection",
    ),
    "a daemon that holds the pipes": (
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(1000)\n  os._exit(0)\nos._exit(7)",
        "runtime",
        "exit code 7",
    ),
    "a daemon that ignores SIGTERM": (
        "if os.fork() == 0:\n  signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid()\n  while True: time.sleep(1)\nos._exit(8)",
        "runtime",
        "exit code 8",
    ),
    "a flood of output, then an end": ("for _ in range(200): os.write(1, b'y' * 65536)\nos._exit(9)", "runtime", "exit code 9"),
    "a child that floods, then an end": (
        "if os.fork() == 0:\n  while True: os.write(2, b'z' * 65536)\nos._exit(10)",
        "runtime",
        "exit code 10",
    ),
    "an end in a thread": ("threading.Thread(target=lambda: os._exit(11)).start(); time.sleep(60)", "runtime", "exit code 11"),
    "an end while a hundred threads run": (
        "for _ in range(100): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nos._exit(12)",
        "runtime",
        "exit code 12",
    ),
    "an end among a hundred children": (
        "for _ in range(100):\n  if os.fork() == 0: time.sleep(1000)\nos._exit(13)",
        "runtime",
        "exit code 13",
    ),
}

# A child that would be the zygote's, which would not reap it.
ENDS["an end beside a sibling"] = (
    "pid = ctypes.CDLL(None).syscall(56, 0x8000 | 17, 0, 0, 0, 0)\nos._exit(21 if pid == -1 else 0)",
    "runtime",
    "exit code 21",
)

# name: body of what only the deadline ends.
HANGS = {
    "sleep": "time.sleep(1000)",
    "spin": "while True: pass",
    "ignore every signal": "for n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
    "block every signal": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1000)",
    "stop oneself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "wait in C": "ctypes.CDLL(None).pause()",
    "hold the interpreter in C": "ctypes.PyDLL(None).pause()",
    "wait for a lock": "l = threading.Lock(); l.acquire(); l.acquire()",
    "wait for a child": "pid = os.fork()\nif pid == 0: time.sleep(1000)\nos.waitpid(pid, 0)",
    "wait for a full pipe": "r, w = os.pipe()\nwhile True: os.write(w, b'x' * 65536)",
    "flood without end": "while True: os.write(1, b'x' * 65536)",
    "fork without end": "resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.1)",
    "start threads without end": "def more():\n  while True:\n    try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n    except RuntimeError: time.sleep(0.1)\nresource.setrlimit(resource.RLIMIT_NPROC, (200, 200)); more()",
    "exec what sleeps": "os.execv('/bin/sleep', ['sleep', '1000'])",
    "catch everything": "while True:\n  try: time.sleep(1000)\n  except BaseException: pass",
    "become a daemon": "if os.fork() == 0: os.setsid()\ntime.sleep(1000)",
}

IMPORTS = "import ctypes, os, resource, signal, socket, sys, threading, time\n"


MEMORY_MAX = 200 << 20

# name: body of what holds more memory than MEMORY_MAX.
HOARDS = {
    "memory of one process": "x = []\nwhile True: x.append(b'x' * (8 << 20)); time.sleep(0.01)",
    "memory of a child": "if os.fork() == 0: x = b'x' * (300 << 20)\ntime.sleep(1000)",
    "memory of many children": "for _ in range(8):\n  if os.fork() == 0:\n    x = b'x' * (40 << 20); time.sleep(1000)\ntime.sleep(1000)",
    "memory of an orphan": "if os.fork() == 0:\n  if os.fork() == 0: x = b'x' * (300 << 20); time.sleep(1000)\n  os._exit(0)\ntime.sleep(1000)",
    "shared memory": "import mmap; m = mmap.mmap(-1, 300 << 20); m.write(b'x' * (300 << 20)); time.sleep(1000)",
    "memory of a thread": "threading.Thread(target=lambda: (b'x' * (300 << 20), time.sleep(1000))).start(); time.sleep(1000)",
}

# name: body of what holds less, though it may not look like it.
MODEST = {
    "forks that share": "x = b'x' * (100 << 20)\nfor _ in range(8):\n  if os.fork() == 0: time.sleep(0.6); os._exit(0)\nfor _ in range(8): os.wait()",
    "subprocesses of a large process": "import subprocess\nx = b'x' * (110 << 20)\nend = time.monotonic() + 2\nwhile time.monotonic() < end: subprocess.run(['/bin/true'])",
    "short-lived forks": "x = b'x' * (70 << 20)\nend = time.monotonic() + 2\nwhile time.monotonic() < end:\n  for _ in range(6):\n    if os.fork() == 0: time.sleep(0.01); os._exit(0)\n  for _ in range(6): os.wait()",
    "address space": "import mmap; m = mmap.mmap(-1, 2 << 30); time.sleep(0.4)",
    "below the bound": "x = b'x' * (100 << 20); time.sleep(0.4)",
}


def dying(body: str, timeout_seconds: float) -> Program:
    indented = "".join("    " + line + "\n" for line in body.split("\n"))
    program = Program(options={"timeout_seconds": timeout_seconds})
    module = program.module(IMPORTS + "def before():\n    print('a line', flush=True)\n    return 'kept'\n\ndef die():\n" + indented)
    program.give("early", program.call(module, "before"))
    program.give("late", program.call(module, "die", id="die"))
    return program


def expect_ready(server: Server) -> None:
    assert server.run("def main():\n    return 6 * 7\n").value() == 42


@pytest.fixture(scope="module", params=["fresh", "reused"])
def one_slot(request):
    reuse = "1" if request.param == "fresh" else "0"
    with running_server("--num-workers", "1", "--max-requests-per-worker", reuse) as server:
        yield server


@pytest.mark.parametrize("name", ENDS)
def test_an_end_is_told_truly_and_costs_nothing_else(one_slot, name):
    body, kind, message = ENDS[name]
    result = one_slot.execute(dying(body, timeout_seconds=60))
    assert result.status == "FAILED"
    assert (result.error["kind"], result.error["instruction_id"]) == (kind, "die"), result.error
    assert message in result.error["message"], result.error
    assert result.values == {"early": "kept"}
    assert result.stdout.startswith("a line\n")
    expect_ready(one_slot)


@pytest.mark.parametrize("name", HANGS)
def test_what_hangs_is_ended_by_its_deadline(one_slot, name):
    reply = one_slot.post(dying(HANGS[name], timeout_seconds=1.5))
    message = reply.error(504, "timeout")
    assert "1.5 s" in message and "die" in message, message
    expect_ready(one_slot)


class TestMemory:
    """`--max-memory-bytes`: of all processes of a program together."""

    @pytest.fixture(scope="class")
    def bounded(self):
        with running_server("--num-workers", "1", "--max-memory-bytes", str(MEMORY_MAX)) as server:
            yield server

    @pytest.mark.parametrize("name", HOARDS)
    def test_who_holds_too_much_is_ended(self, bounded, name):
        result = bounded.execute(dying(HOARDS[name], timeout_seconds=60))
        assert result.status == "FAILED"
        assert (result.error["kind"], result.error["instruction_id"]) == ("runtime", "die"), result.error
        assert f"one program may hold {MEMORY_MAX}" in result.error["message"], result.error
        assert result.values == {"early": "kept"} and result.stdout.startswith("a line\n")
        expect_ready(bounded)

    @pytest.mark.parametrize("name", MODEST)
    def test_who_holds_less_is_left_alone(self, bounded, name):
        assert bounded.execute(dying(MODEST[name], timeout_seconds=60)).status == "COMPLETED"

    def test_without_a_bound_there_is_none(self):
        with running_server("--num-workers", "1", "--max-memory-bytes", "0") as server:
            assert server.execute(dying("x = b'x' * (300 << 20); time.sleep(0.4)", timeout_seconds=60)).status == "COMPLETED"
