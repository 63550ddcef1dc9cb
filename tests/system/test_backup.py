"""`kcoral backup` of a server that goes on, and servers that start from what it makes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import uuid
from typing import Callable, Iterator

import pytest

from harness import KCORAL, PATIENCE_S, Program, Reply, Server, call, multipart, wait_until
from rows import rows_left_by

LARGE_BYTES = 96 << 20  # so that a backup to another file system takes a while
SAVED = re.compile(
    r"saved (\d+) requests, [0-9.]+ [KMG]iB( \([0-9.]+ [KMG]iB in files shared with the server's own\))?, in [0-9.]+ s"
    r"; to start from it: kcoral server --data-dir (\S+)\n"
)
SLEEPER = call("import time\ndef main():\n    print('begun', flush=True)\n    time.sleep(600)\n", max_attempts=1)
ECHO = "def main(data):\n    print(len(data))\n    return [len(data), data[::-1]]\n"


def start_backup(data_dir: pathlib.Path, directory: pathlib.Path | str, **more) -> subprocess.Popen:
    command = [str(KCORAL), "backup", "--data-dir", str(data_dir), str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def back_up(data_dir: pathlib.Path, directory: pathlib.Path | str, **more) -> tuple[int, str, str]:
    process = start_backup(data_dir, directory, **more)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def complaint(err: str) -> str:
    """What was said besides how far it is, which a slow disk has it say."""
    return re.sub(r"[0-9.]+ [KMG]iB of [0-9.]+ [KMG]iB \([0-9]+ %\)\n", "", err)


def saved(data_dir: pathlib.Path, directory: pathlib.Path) -> int:
    code, out, err = back_up(data_dir, directory)
    assert (code, complaint(err)) == (0, ""), err
    found = SAVED.fullmatch(out)
    assert found and found.group(3) == str(directory), out
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not beside(directory).exists()
    return int(found.group(1))


def refused(data_dir: pathlib.Path, directory: pathlib.Path | str, why: str) -> None:
    code, out, err = back_up(data_dir, directory)
    assert (code, out) == (1, ""), (code, out)
    said = complaint(err)
    assert said.startswith("kcoral backup: nothing was saved: ") and said.count("\n") == 1 and why in said, err


def beside(directory: pathlib.Path) -> pathlib.Path:
    return directory.with_name(directory.name + ".incomplete")


def echo(content: bytes, **options) -> Program:
    program = Program(options=options or None)
    data = program.add("upload", kind="bytes", id="data", blob=program.blob(content))
    program.give("value", program.call(program.module(ECHO), "main", [data]))
    return program


def enqueue(server: Server, program: Program) -> str:
    content_type, body = multipart(program.document(), list(program.blobs.values()))
    id = str(uuid.uuid4())
    headers = {"Content-Type": content_type, "X-Request-ID": id}
    reply = server.request("POST", "/requests", body, headers)
    assert reply.status == 202, reply.body
    return id


def result(server: Server, id: str) -> Reply:
    """Once it has ended."""
    assert server.request("GET", f"/requests/{id}?wait=60").status == 200
    return server.request("GET", f"/requests/{id}/result", headers={"X-Request-ID": id})


def everything_said_of(server: Server, id: str) -> list:
    """All that can be asked about a request that has ended, but what names the place where it is asked."""
    paths = ["", "/result", "/program", "/audit", "/output?stream=stdout&offset=0", "/artifacts/value"]
    # Under one id, lest errors have one of their own.
    replies = [server.request("GET", f"/requests/{id}{path}", headers={"X-Request-ID": id}) for path in paths]
    return [(reply.status, reply.headers.get("content-type"), reply.body) for reply in replies]


def all_requests(server: Server) -> dict[str, dict]:
    page = json.loads(server.request("GET", "/requests?limit=1000").body)
    return {one["request_id"]: one for one in page["requests"]}


def is_idle(server: Server) -> bool:
    load = server.health()["load"]
    return (load["requests_in_progress"], load["requests_waiting"]) == (0, 0)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Server]]:
    """Starts servers; what a failed test leaves of them is killed."""
    made: list[Server] = []

    def start(data_dir: pathlib.Path, *flags: str, **more) -> Server:
        made.append(Server(data_dir, *flags, **more))
        return made[-1].start()

    yield start
    for server in made:
        if server.process and server.process.poll() is None:
            server.kill()


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[pathlib.Path]:
    """A directory on another file system, if there is one."""
    memory = "/dev/shm"
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 8 * LARGE_BYTES
    parent = memory if has_room else tmp_path
    with tempfile.TemporaryDirectory(dir=parent, prefix="kcoral-backup-") as directory:
        yield pathlib.Path(directory)


def test_a_server_that_starts_from_it_goes_on_where_the_original_was(start, data_dir, tmp_path):
    original = start(data_dir)
    ended = {}
    for content in (b"few", b"x" * 100_000, os.urandom(9 << 20)):
        reply = original.post(echo(content))
        assert reply.status == 200
        ended[reply.headers["x-request-id"]] = reply
    raised = original.post(call("def main():\n    print('so far')\n    raise ValueError('no')\n"))
    ended[raised.headers["x-request-id"]] = raised
    running = enqueue(original, SLEEPER)
    output = f"/requests/{running}/output?stream=stdout&offset=0"
    wait_until(lambda: b"begun" in original.request("GET", output).body, "it runs")
    content = os.urandom(3 << 20)
    queued = [enqueue(original, echo(content, labels={"queued": str(number)})) for number in range(5)]

    copy_dir = tmp_path / "copy"
    assert saved(data_dir, copy_dir) == 10
    copy = start(copy_dir)
    for id, reply in ended.items():
        assert everything_said_of(copy, id) == everything_said_of(original, id)
        again = copy.request("GET", f"/requests/{id}/result")
        assert (again.status, again.body, again.headers["content-type"]) == (
            reply.status,
            reply.body,
            reply.headers["content-type"],
        )
    assert "the server ended while it ran" in result(copy, running).error(500, "engine")
    for id in queued:
        assert result(copy, id).result().value() == [len(content), content[::-1]]
    assert set(all_requests(copy)) == {*ended, running, *queued}

    # The original knows nothing of all that.
    states = {id: one["state"] for id, one in all_requests(original).items()}
    assert [states[id] for id in queued] == ["queued"] * 5 and states[running] == "running"
    assert original.request("DELETE", f"/requests/{running}").status == 200
    for id in queued:
        assert result(original, id).result().value() == [len(content), content[::-1]]
    # Both go on, and so do both when they start again.
    assert original.run("def main():\n    return 1\n").value() == copy.run("def main():\n    return 1\n").value() == 1
    for server in (original, copy):
        assert server.stop() == 0
        server.start()
        for id, reply in ended.items():
            assert server.request("GET", f"/requests/{id}/result").body == reply.body
        assert server.stop() == 0


def test_under_load_each_of_many_backups_has_all_that_it_knows(start, data_dir, tmp_path, elsewhere):
    original = start(data_dir, "--num-workers", "2", "--max-requests-per-worker", "0")
    is_over, failures = threading.Event(), []
    answers: dict[str, Reply] = {}

    def client(seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not is_over.is_set():
                reply = original.post(echo(draw.randbytes(draw.choice((10, 30_000, 300_000)))))
                assert reply.status == 200, reply.body
                answers[reply.headers["x-request-id"]] = reply
                enqueue(original, echo(draw.randbytes(100)))
        except BaseException as error:
            failures.append(error)

    clients = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for each in clients:
        each.start()
    try:
        copies = []
        for directory in (tmp_path / "one", elsewhere / "two", tmp_path / "three"):
            enough = len(answers) + 10
            wait_until(lambda: failures or len(answers) >= enough, "programs end")
            known = dict(answers)
            saved(data_dir, directory)
            copies.append((directory, known))
    finally:
        is_over.set()
        for each in clients:
            each.join()
    assert not failures, failures
    for directory, known in copies:
        copy = start(directory, "--num-workers", "2", "--max-requests-per-worker", "0")
        assert not (known.keys() - all_requests(copy).keys()), "whatever was answered before is in it"
        wait_until(lambda: is_idle(copy), "what was queued has run")
        for id, one in all_requests(copy).items():
            audit = json.loads(copy.request("GET", f"/requests/{id}/audit").body)["records"]
            assert [record["seq"] for record in audit] == list(range(len(audit)))
            assert [record["event"] for record in audit].count("finished") == 1, audit
            reply = copy.request("GET", f"/requests/{id}/result")
            if one["state"] == "interrupted":
                assert "the server ended while it ran" in reply.body.decode()
            else:
                assert (one["state"], reply.status) == ("completed", 200), (one, reply.body)
            if id in known:
                assert reply.body == answers[id].body
        assert copy.stop() == 0
    assert original.stop() == 0


def test_what_cannot_be_backed_up_is_said_in_one_line(start, data_dir, tmp_path):
    refused(tmp_path / "none", tmp_path / "copy", "there is no data directory")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path / "copy", "no server that is ready runs there")
    server = start(data_dir)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "theirs").write_text("theirs")
    refused(data_dir, taken, "is not empty")
    refused(data_dir, taken / "theirs", "is no directory")
    refused(data_dir, tmp_path / "none" / "copy", "does not exist")
    refused(data_dir, data_dir / "copy", "outside")
    refused(data_dir, "/proc/copy", "cannot be made")
    refused(data_dir, "/proc", "is a mount point: name a new directory inside of it")
    refused(data_dir, "", "name is empty")
    refused(data_dir, os.fsdecode(bytes(tmp_path / "caf") + b"\xe9"), "not UTF-8")
    assert not list(tmp_path.glob("caf*"))
    (tmp_path / "gone").mkdir()
    backup = [str(KCORAL), "backup", "--data-dir", str(data_dir), "copy"]
    nowhere = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *backup], cwd=tmp_path / "gone", capture_output=True, text=True
    )
    assert (nowhere.returncode, nowhere.stdout, nowhere.stderr.count("\n")) == (1, "", 1), nowhere
    assert "there is no working directory" in nowhere.stderr
    assert list(taken.iterdir()) == [taken / "theirs"] and not (tmp_path / "copy").exists()
    relative = back_up(data_dir, "copy/", cwd=tmp_path)
    assert relative[0] == 0 and str(tmp_path / "copy") in relative[1], relative
    refused(data_dir, tmp_path / "copy", "is not empty")
    for arguments in ([], ["one", "two"], ["--no-such-flag", "x"]):
        usage = subprocess.run([str(KCORAL), "backup", *arguments], capture_output=True, text=True)
        assert usage.returncode == 2 and usage.stdout == "" and usage.stderr, usage
    help = subprocess.run([str(KCORAL), "backup", "--help"], capture_output=True, text=True)
    assert help.returncode == 0 and "--data-dir" in help.stdout and "DIR" in help.stdout
    assert server.stop() == 0
    refused(data_dir, tmp_path / "late", "no server that is ready runs there")


def test_the_socket_is_the_servers_users_alone_and_an_old_one_is_in_nobodys_way(start, data_dir, tmp_path):
    deep = tmp_path / ("d" * 120) / "data"  # longer than the address of a socket
    deep.parent.mkdir()
    server = start(deep)
    path = deep / "control.sock"
    assert stat.S_ISSOCK(path.stat().st_mode) and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(deep.stat().st_mode) == 0o700
    server.kill()
    assert path.exists()
    refused(deep, tmp_path / "copy", "no server that is ready runs there")
    server.start()
    assert saved(deep, tmp_path / "copy") == 0
    for nonsense in (b"", b"\n", b"[]\n", b"{}\n", b'{"command": "backup"}\n', b'{"command": 1}\n', b"x" * 100_000):
        speak_to(deep, nonsense)
    assert saved(deep, tmp_path / "again") == 0
    assert server.stop() == 0


def speak_to(data_dir: pathlib.Path, line: bytes) -> None:
    directory = os.open(data_dir, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.connect(f"/proc/self/fd/{directory}/control.sock")
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
    finally:
        os.close(directory)


@pytest.mark.parametrize("point", ["snapshot.taken", "content.held", "database.copied", "content.copied"])
def test_a_server_that_is_killed_meanwhile_leaves_nothing(start, data_dir, tmp_path, elsewhere, point):
    server = start(data_dir, environment={"KCORAL_FAILPOINT": f"backup.{point}"})
    assert server.post(echo(os.urandom(9 << 20))).status == 200
    before = rows_left_by(server)
    for directory in (tmp_path / "copy", elsewhere / "copy"):
        refused(data_dir, directory, "the server ended before it said that")
        server.process.wait(PATIENCE_S)
        assert f"failpoint backup.{point} kills" in server.log()
        assert list(directory.parent.glob("copy*")) == []
        server.kill()
        server.start()
        assert not (data_dir / "content" / "checkpoint").exists()
    server.kill()
    server.environment = {}
    server.start()
    assert rows_left_by(server) == before
    assert saved(data_dir, tmp_path / "copy") == 1
    assert server.stop() == 0


def test_a_backup_that_is_in_place_when_the_server_is_killed_is_whole(start, data_dir, tmp_path):
    server = start(data_dir, environment={"KCORAL_FAILPOINT": "backup.directory.placed"})
    reply = server.post(echo(os.urandom(9 << 20)))
    code, out, err = back_up(data_dir, tmp_path / "copy")
    assert (code, out) == (1, "") and "is there, and whole" in err, err
    server.process.wait(PATIENCE_S)
    copy = start(tmp_path / "copy")
    assert copy.request("GET", f"/requests/{reply.headers['x-request-id']}/result").body == reply.body
    assert copy.stop() == 0


class Midway:
    """A server that stands still in the middle of a backup. Another try is made if that came to its end before."""

    def __init__(self, server: Server, directory: pathlib.Path):
        for _ in range(20):
            self.command = start_backup(server.data_dir, directory)
            wait_until(lambda: beside(directory).exists() or directory.exists(), "it begins")
            server.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: all_stopped(server.pid), "the server stands still")
            if beside(directory).exists() and not directory.exists():
                return
            server.process.send_signal(signal.SIGCONT)
            self.command.communicate(timeout=PATIENCE_S)
            shutil.rmtree(directory)
        pytest.skip("a backup is faster here than one can look")


def all_stopped(pid: int) -> bool:
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in tasks)


@pytest.fixture
def large_server(start, data_dir) -> Server:
    server = start(data_dir)
    # A blob and an answer, each a table file.
    assert server.post(echo(os.urandom(LARGE_BYTES))).status == 200
    return server


def test_a_command_that_is_killed_takes_its_backup_along(large_server, tmp_path, elsewhere):
    directory = elsewhere / "copy"
    command = Midway(large_server, directory).command
    command.kill()
    command.communicate()
    large_server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not beside(directory).exists(), "what there was of it is removed")
    wait_until(lambda: "the backup was given up" in large_server.log(), "the server says so")
    assert not directory.exists() and not (large_server.data_dir / "content" / "checkpoint").exists()
    assert saved(large_server.data_dir, directory) == 1
    assert large_server.stop() == 0


def test_a_server_that_is_stopped_meanwhile_says_so(large_server, elsewhere):
    directory = elsewhere / "copy"
    command = Midway(large_server, directory).command
    large_server.process.send_signal(signal.SIGTERM)
    large_server.process.send_signal(signal.SIGCONT)
    out, err = command.communicate(timeout=PATIENCE_S)
    assert large_server.stop() == 0
    assert not beside(directory).exists()
    if command.returncode == 0:
        pytest.skip("the backup was there before the server had heard the signal")
    assert (command.returncode, out) == (1, "") and "the server is shutting down" in err, err
    assert not directory.exists()


def test_another_backup_meanwhile_is_refused(large_server, tmp_path, elsewhere):
    first = Midway(large_server, elsewhere / "copy").command
    second = start_backup(large_server.data_dir, tmp_path / "second")
    wait_until(lambda: waits_for_words(second.pid), "the second one has asked")
    large_server.process.send_signal(signal.SIGCONT)
    out, err = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out) == (1, "") and "another backup is being made" in err, err
    assert not (tmp_path / "second").exists()
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0
    assert large_server.stop() == 0


def waits_for_words(pid: int) -> bool:
    """A command waits in `poll`, and has asked by then."""
    return pathlib.Path(f"/proc/{pid}/syscall").read_text().split()[0] == "7"


def test_a_full_disk_is_said_so_and_is_nobody_elses_concern(large_server, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        refused(large_server.data_dir, small / "copy", "no space is left on the disk")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert large_server.run("def main():\n    return 1\n").value() == 1
    assert saved(large_server.data_dir, tmp_path / "copy") == 2
    assert large_server.stop() == 0


@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_a_backup_that_takes_long_shows_how_far_it_is(tmp_path, is_terminal):
    """A server that is played: it goes on with the same words until they are shown."""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "control.sock"))
        listener.listen()
        command = subprocess.Popen(
            [str(KCORAL), "backup", "--data-dir", str(tmp_path), str(tmp_path / "copy")],
            stdout=subprocess.PIPE, stderr=theirs, text=True,
        )  # fmt: skip
        os.close(theirs)
        server, _ = listener.accept()
        with server:
            asked = json.loads(server.makefile().readline())
            assert asked == {"command": "backup", "directory": str(tmp_path / "copy")}
            shown = b""

            def tell() -> bool:
                nonlocal shown
                server.sendall(b'{"bytes_done": 0, "bytes_total": 0}\n')
                server.sendall(b'{"bytes_done": 52428800, "bytes_total": 209715200}\n')
                if select.select([ours], [], [], 0.01)[0]:
                    shown += os.read(ours, 4096)
                return b"%" in shown

            wait_until(tell, "it is shown")
            assert b"50 MiB of 200 MiB (25 %)" in shown
            assert shown.startswith(b"\r") == is_terminal
            server.sendall(b'{"result": {"requests": 7, "bytes": 209715200, "bytes_shared": 0, "seconds": 1.5}}\n')
        out, _ = command.communicate(timeout=PATIENCE_S)
    os.close(ours)
    assert command.returncode == 0
    found = SAVED.fullmatch(out)
    assert found and found.groups() == ("7", None, str(tmp_path / "copy")), out
