"""Endurance: of many programs on two slots a third die in random ways, and at the end all is as it was at the start.

Each program is drawn from the seed and its own number: a seed repeats its programs, whichever client sends them.
KCORAL_ENDURANCE_PROGRAMS=10000 is the full run, KCORAL_ENDURANCE_SEED repeats one, and `pytest -s` shows the figures.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator

import pytest

from harness import Program, Reply, Server, call, family, running_server, wait_until
from test_ways_to_die import ENDS, HANGS, dying

PROGRAMS = int(os.environ.get("KCORAL_ENDURANCE_PROGRAMS", "240"))
SEED = int(os.environ.get("KCORAL_ENDURANCE_SEED", random.SystemRandom().randrange(10**6)))

SLOTS = 2
CLIENTS = 4
WARM_UP = 60  # programs before the first figures are taken

# Each takes a second or more by itself.
SLOW = {"out of CPU time", "shut the runtime's socket down"}
QUICK_ENDS = [name for name in ENDS if name not in SLOW]
DEATHS_FOR_A_HANG = 30  # few, for each costs its deadline
HANG_SECONDS = 1.25

# Sent in the warm-up, all of them: the server keeps a descriptor open for each content that is hot.
CONTENTS = [bytes([number]) * (4096 * number + 1) for number in range(8)]
LETTERS = "abc xyz 0189 \"'\\\n\t\0 äß€ \U0001f980"

# The processes of a slot at rest, by their names: one runtime stands by, in a pid namespace of its own.
AT_REST = {"kcoral-executor": 1, "bwrap": 2, "init": 1, "kcoral-init": 1, "python3": 2}

# How much larger the processes may have become. The server has memtables and caches of its databases to fill: from some
# thousand programs on it goes up and down between 20 and 40 MiB above its start, without a trend. An executor keeps the
# 3 MiB that the largest outputs took. A zygote runs no program, and keeps its size.
GROWTH_KIB_MAX = {"server": 64 * 1024, "executor": 6 * 1024, "zygote": 1024}

# RocksDB keeps a file open for each table that it has written.
DATA_FILES_MORE_MAX = 16 + PROGRAMS // 200

Check = Callable[[Reply], None]


@dataclass(frozen=True)
class Drawn:
    """A program, and a check that holds for the one right answer."""

    name: str
    program: Program
    check: Check

    def wrong(self, server: Server) -> str | None:
        """Runs it; says what was wrong, if anything."""
        try:
            self.check(server.post(self.program, X_Request_ID=str(uuid.uuid4())))
        except Exception as error:
            return f"{self.name}: {error!r}"[:2000]
        return None


def completed(values: dict[str, Any], stdout: str = "") -> Check:
    def check(reply: Reply) -> None:
        assert reply.status == 200, reply.body[:1000]
        result = reply.result()
        assert (result.status, result.error) == ("COMPLETED", None)
        assert (result.values, result.stdout, result.stderr) == (values, stdout, "")

    return check


def failed(kind: str, instruction: str, message: str, values: dict[str, Any], stdout: str, flood: str = "") -> Check:
    """`flood`: a letter of which any number may follow `stdout`."""

    def check(reply: Reply) -> None:
        assert reply.status == 200, reply.body[:1000]
        result = reply.result()
        assert result.status == "FAILED"
        assert (result.error["kind"], result.error["instruction_id"]) == (kind, instruction), result.error
        assert message in result.error["message"], result.error
        assert result.values == values
        assert result.stdout.startswith(stdout), result.stdout[:1000]
        assert set(result.stdout.removeprefix(stdout)) <= set(flood), result.stdout[:1000]

    return check


def timed_out(seconds: float, instruction: str) -> Check:
    def check(reply: Reply) -> None:
        message = reply.error(504, "timeout")
        assert f"{seconds} s" in message and instruction in message, message

    return check


def compute(draw: random.Random) -> Drawn:
    number = draw.randrange(10 ** draw.randrange(1, 40))
    program = call("def main(n):\n    return n * n + 1\n", args=[number])
    return Drawn("compute", program, completed({"value": number * number + 1}))


def print_text(draw: random.Random) -> Drawn:
    text, count = "".join(draw.choices(LETTERS, k=draw.randrange(5000))), draw.randrange(300)
    source = "def main(text, count):\n    print(text, end='')\n    return bytes(range(256)) * count\n"
    program = call(source, args=[text, count])
    return Drawn("print text", program, completed({"value": bytes(range(256)) * count}, text))


def return_files(content: bytes) -> Drawn:
    program = Program()
    path = program.add("upload", kind="file", id="path", blob=program.blob(content), path="in/file")
    source = "def main(path):\n    open('out', 'wb').write(open(path, 'rb').read() + b'!')\n"
    program.call(program.module(source), "main", [path])
    for name in ("in/file", "out"):
        program.add("return", key=name, kind="file", path=name)
    return Drawn("return files", program, completed({"in/file": content, "out": content + b"!"}))


def return_some_files(draw: random.Random) -> Drawn:
    return return_files(draw.choice(CONTENTS))


def leave_things_running(draw: random.Random) -> Drawn:
    source = (
        "import subprocess, threading, time\n"
        "def main(number):\n"
        "    subprocess.Popen(['sleep', '1000'])\n"
        "    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "    return number\n"
    )
    number = draw.randrange(1000)
    return Drawn("leave things running", call(source, args=[number]), completed({"value": number}))


def raise_its_own(draw: random.Random) -> Drawn:
    source = (
        "class Own(Exception): pass\n"
        "def first():\n"
        "    print('first')\n"
        "    return 1\n"
        "def main(text): raise Own(text)\n"
    )
    text = f"number {draw.randrange(10**9)}"
    program = Program()
    module = program.module(source)
    program.give("first", program.call(module, "first"))
    program.give("value", program.call(module, "main", [text], id="main"))
    return Drawn("raise", program, failed("runtime", "main", text, {"first": 1}, "first\n"))


def die(draw: random.Random) -> Drawn:
    if draw.randrange(DEATHS_FOR_A_HANG) == 0:
        name = draw.choice(list(HANGS))
        return Drawn(name, dying(HANGS[name], timeout_seconds=HANG_SECONDS), timed_out(HANG_SECONDS, "die"))
    name = draw.choice(QUICK_ENDS)
    body, kind, message = ENDS[name]
    flood = "y" if name == "a flood of output, then an end" else ""
    check = failed(kind, "die", message, {"early": "kept"}, "a line\n", flood)
    return Drawn(name, dying(body, timeout_seconds=60), check)


HEALTHY = (compute, print_text, return_some_files, leave_things_running, raise_its_own)


def drawn(numbers: range) -> Iterator[Drawn]:
    for number in numbers:
        draw = random.Random(f"{SEED} {number}")
        one = die(draw) if draw.randrange(3) == 0 else draw.choice(HEALTHY)(draw)
        yield replace(one, name=f"program {number}, {one.name}")


def wrong_of(server: Server, programs: Iterable[Drawn]) -> list[str]:
    """Runs them, sent by several clients; says what was wrong."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        return [wrong for wrong in clients.map(lambda each: each.wrong(server), programs) if wrong]


def end_runtimes(server: Server) -> None:
    """Ends a runtime on every slot: one that came back after its program would stand by beside the one that does."""
    source = (
        "import os, time\n"
        "def slot():\n"
        "    return os.stat('/proc/self/ns/uts').st_ino\n"
        "def main():\n"
        "    time.sleep(0.2)\n"
        "    os._exit(0)\n"
    )
    program = Program()
    module = program.module(source)
    program.give("slot", program.call(module, "slot"))
    program.call(module, "main")
    slots: set[int] = set()
    while len(slots) < SLOTS:
        with ThreadPoolExecutor(SLOTS) as clients:
            slots.update(clients.map(lambda _: server.execute(program).values["slot"], range(SLOTS)))


def executors(server: Server) -> list[int]:
    return sorted(each.pid for each in family(server.pid) if each.parent == server.pid)


@dataclass(frozen=True)
class Figures:
    descriptors: int
    data_files: int  # more descriptors, of files in the data directory: databases open those as they grow
    threads: int
    memory_kib: int


def figures_of(pid: int, data_dir: pathlib.Path) -> Figures:
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    links = []
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(descriptor))
    data_files = sum(link.startswith(f"{data_dir}/") for link in links)
    return Figures(len(links) - data_files, data_files, int(status["Threads"]), int(status["VmRSS"].split()[0]))


@dataclass(frozen=True)
class Standing:
    """What a server consists of."""

    names: Counter[str]  # of the processes below it
    figures: dict[str, Figures]

    def is_at_rest(self) -> bool:
        return self.names == {name: count * SLOTS for name, count in AT_REST.items()}

    def is_like(self, other: "Standing") -> bool:
        """In what must come back exactly."""

        def exact(standing: Standing) -> list[tuple[int, int]]:
            return [(figures.descriptors, figures.threads) for figures in standing.figures.values()]

        return self.names == other.names and exact(self) == exact(other)

    def grown_too_much(self, start: "Standing") -> list[str]:
        grown = []
        for name, then in start.figures.items():
            now = self.figures[name]
            kib, files = now.memory_kib - then.memory_kib, now.data_files - then.data_files
            if kib > GROWTH_KIB_MAX[name.split()[0]] or files > DATA_FILES_MORE_MAX:
                grown.append(f"{name}: {kib} KiB and {files} data files more")
        return grown

    def table(self, start: "Standing") -> str:
        lines = [f"{'':12}{'descriptors':>13}{'data files':>13}{'threads':>13}{'memory, KiB':>17}"]
        for name, now in self.figures.items():
            then = start.figures[name]
            lines.append(
                f"{name:12}{then.descriptors:7}→{now.descriptors:5}{then.data_files:7}→{now.data_files:5}"
                f"{then.threads:7}→{now.threads:5}{then.memory_kib:9}→{now.memory_kib:7}"
            )
        names = (f"{start.names[name]}→{self.names[name]} {name}" for name in sorted(start.names | self.names))
        return "\n".join([*lines, "processes: " + ", ".join(names)])


def standing(server: Server) -> Standing:
    pids = {"server": server.pid}
    for number, executor in enumerate(executors(server)):
        pids[f"executor {number}"] = executor
        pids[f"zygote {number}"] = next(each.pid for each in family(executor) if each.name == "python3")
    figures = {name: figures_of(pid, server.data_dir) for name, pid in pids.items()}
    return Standing(Counter(each.name for each in family(server.pid)), figures)


def at_rest(server: Server) -> Standing | None:
    """None while anything still changes."""
    first, second = standing(server), standing(server)
    return second if second.is_at_rest() and second.is_like(first) else None


@contextlib.contextmanager
def watched(server: Server) -> Iterator[set[tuple]]:
    """Collects what is to be seen from outside meanwhile. All is well if it is one thing only."""
    seen: set[tuple] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            health = server.health()
            seen.add((health["status"], health["instance_id"], health["load"]["request_capacity"], *executors(server)))

    with ThreadPoolExecutor(1) as watcher:
        watching = watcher.submit(watch)
        try:
            yield seen
        finally:
            over.set()
        watching.result()


@pytest.mark.parametrize("flags", [(), ("--max-requests-per-worker", "50")], ids=["fresh", "reused"])
def test_after_random_deaths_all_is_as_it_was(flags):
    print(f"\n{PROGRAMS} programs, KCORAL_ENDURANCE_SEED={SEED}")
    with running_server("--num-workers", str(SLOTS), *flags) as server:
        assert wrong_of(server, [*map(return_files, CONTENTS), *drawn(range(WARM_UP))]) == []
        end_runtimes(server)
        start = wait_until(lambda: at_rest(server), "the slots are at rest before it begins")
        ready = ("ok", server.health()["instance_id"], SLOTS, *executors(server))
        with watched(server) as seen:
            assert wrong_of(server, drawn(range(WARM_UP, WARM_UP + PROGRAMS))) == []
        assert seen == {ready}
        end_runtimes(server)
        try:
            wait_until(lambda: (end := at_rest(server)) and end.is_like(start), "all is as it was at the start")
        finally:
            end = standing(server)
            print(end.table(start))
        assert end.grown_too_much(start) == []
        load = server.health()["load"]
        assert (load["requests_in_progress"], load["requests_waiting"]) == (0, 0)
