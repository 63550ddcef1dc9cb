"""A program finds what a script that was started fresh would find, and nothing of the one before (contract section
10).
"""

import json

import pytest

from driver import function, module, program, returns, run


def result(slot, source, **more):
    """The string that f() returns, as JSON that the program made itself."""
    outcome = slot.run(program("import json\n" + source + "\ndef f():\n    return json.dumps(g())\n"), **more)
    assert not outcome.error, outcome.error
    return json.loads(outcome.returned["result"].wire["value"])


def test_the_environment(slot):
    environment = result(slot, "import os\ndef g(): return dict(os.environ)\n")
    assert environment["KCORAL_DIR"] == slot.root + "/work" and environment["HOME"] == slot.root + "/private/home"
    assert environment["TMPDIR"] == slot.root + "/tmp" and environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["LANG"] == "C.UTF-8" and environment["TZ"] == "UTC"
    assert "SECRET_OF_THE_SERVER" not in environment
    # What C code and child processes see is the same.
    assert environment == {
        k: v
        for k, v in result(
            slot,
            """
import os, subprocess
def g():
    lines = subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)
""",
        ).items()
    }


def test_leased_devices_are_visible(slot):
    assert result(slot, "import os\ndef g(): return os.environ['CUDA_VISIBLE_DEVICES']\n", devices=[2, 5]) == "2,5"
    assert result(slot, "import os\ndef g(): return os.environ['CUDA_VISIBLE_DEVICES']\n") == ""


def test_the_process(slot):
    facts = result(
        slot,
        """
import gc, os, signal, sys, threading, __main__
def g():
    return {"argv": sys.argv, "cwd": os.getcwd(), "umask": os.umask(0),
            "home": os.stat(os.environ["HOME"]).st_mode & 0o777,
            "main": [__main__.__name__, getattr(__main__, "__file__", None), sys.modules["__main__"] is __main__],
            "stdin": sys.stdin.read(), "fds": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
            "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "sigpipe": signal.getsignal(signal.SIGPIPE),
            "sigterm": signal.getsignal(signal.SIGTERM), "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "gc": gc.isenabled(), "path": sys.path[:3], "limit": sys.getrecursionlimit(),
            "threads": threading.active_count(),
            "main thread": threading.current_thread() is threading.main_thread(), "trace": sys.gettrace() is None}
""",
    )
    assert (
        facts["argv"] == [""]
        and facts["cwd"] == slot.root + "/work"
        and facts["home"] == 0o700
        and facts["umask"] == 0o022
    )
    assert facts["main"] == ["__main__", None, True] and facts["stdin"] == ""
    assert facts["fds"] == [0, 1, 2, 1000] or facts["fds"] == [0, 1, 2, 3], facts["fds"]
    assert facts["sigint"] and facts["sigpipe"] == 1 and facts["sigterm"] == 0 and facts["blocked"] == []
    assert facts["gc"] and facts["threads"] == 1 and facts["main thread"] and facts["trace"] and facts["limit"] == 1000
    assert facts["path"][0] == slot.root + "/work"


def test_nothing_of_the_service_can_be_imported_by_accident(slot):
    names = ["values", "files", "errors", "runtime", "serving", "private", "memory", "frames", "startup"]
    found = result(
        slot,
        """
import importlib.util, sys
def g():
    found = [n for n in %r if n in sys.modules or importlib.util.find_spec(n)]
    return [found, [m for m in sys.modules if "kcoral_runtime" in m]]
""" % names,
    )
    assert found == [[], []]


def test_generators_differ_between_forks(slot):
    pytest.importorskip("numpy")
    source = """
import random, numpy
def g(): return [random.random(), float(numpy.random.random()), numpy.random.randint(10**9)]
"""
    draws = [result(slot, source) for _ in range(3)]
    for column in zip(*draws):
        assert len(set(column)) == 3


def test_state_does_not_travel(slot):
    leave = """
import builtins, os, signal, sys, json as module
def g():
    seen = [hasattr(builtins, "left"), "LEFT" in os.environ, os.path.exists("left"), hasattr(module, "left"),
            signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN, "left" in sys.modules, os.listdir(os.environ["HOME"]),
            os.umask(0o77), sys.getrecursionlimit()]
    builtins.left = module.left = 1
    os.environ["LEFT"] = "1"
    open("left", "w").close()
    open(os.environ["HOME"] + "/left", "w").close()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.modules["left"] = sys
    sys.setrecursionlimit(5000)
    return seen
"""
    first = result(slot, leave)
    assert first == [False] * 6 + [[], 0o022, 1000]
    assert result(slot, leave) == first


def test_source_is_found_by_inspect_and_dataclasses_and_pickle(slot):
    source = """
from __future__ import annotations
import dataclasses, inspect, pickle, typing
@dataclasses.dataclass
class Point:
    x: int
    kind: typing.ClassVar[str] = "p"
def g():
    point = pickle.loads(pickle.dumps(Point(3)))
    return [point.x, inspect.getsource(Point).splitlines()[1], inspect.getsource(g).splitlines()[0],
            __name__ != "__main__", typing.get_type_hints(Point)["x"] is int]
"""
    assert json.loads(
        slot.run(
            [module(source + "import json\ndef f(): return json.dumps(g())\n"), function("f"), run("f"), returns()]
        )
        .returned["result"]
        .wire["value"]
    ) == [3, "class Point:", "def g():", True, True]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(slot, method):
    source = """
import multiprocessing
def square(x):
    import kcoral.builtins
    return x * x
def g():
    with multiprocessing.get_context(%r).Pool(2) as pool:
        return pool.map(square, range(5))
""" % method
    assert result(slot, source) == [0, 1, 4, 9, 16]


def test_a_python_that_the_program_starts(slot):
    source = """
import subprocess, sys
def g():
    code = "import kcoral.builtins, sys, os; print(os.getcwd()); import values"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return [done.stdout.strip(), done.stderr.strip().splitlines()[-1]]
"""
    assert result(slot, source) == [slot.root + "/work", "ModuleNotFoundError: No module named 'values'"]


def test_streams_work_as_usual(slot):
    source = """
import sys
def f():
    print("line \\u20ac"); sys.stdout.write("no newline"); sys.stdout.buffer.write(b" raw \\xff")
    print(" err", file=sys.stderr)
    print(sys.stdout.encoding, sys.stdout.fileno(), file=sys.__stderr__)
"""
    outcome = slot.run([module(source), function("f"), run("f")])
    assert outcome.stdout == "line \u20ac\nno newline raw ".encode() + b"\xff" and outcome.stderr == b" err\nutf-8 1\n"


def test_a_fork_that_returns_does_not_answer_for_its_parent(slot):
    source = """
import os
def f():
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        print("child")
        %s
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status)
"""
    for body, code in (
        ("return 99", 0),
        ("raise ValueError('from the child')", 1),
        ("raise SystemExit(5)", 5),
        ("raise SystemExit", 0),
    ):
        outcome = slot.run(program(source % body))
        assert outcome.returned["result"].wire == {"type": "integer", "value": code}
        assert outcome.stdout == b"child\n" and outcome.types.count("started") == 4
        assert (b"ValueError: from the child" in outcome.stderr) == ("ValueError" in body)


def test_a_fork_while_a_module_loads(slot):
    source = "import os\nif os.fork() == 0: x = 1\nelse: os.wait()\ndef f(): return 5\n"
    outcome = slot.run(program(source))
    assert outcome.returned["result"].wire["value"] == 5 and outcome.types.count("completed") == 1


def test_what_is_left_running_does_not_delay_the_answer(slot):
    source = """
import atexit, subprocess, threading, time
def f():
    atexit.register(lambda: print("at exit"))
    threading.Thread(target=time.sleep, args=(1000,)).start()
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    return 1
"""
    outcome = slot.run(program(source))
    assert outcome.returned["result"].wire["value"] == 1 and outcome.stdout == b""
