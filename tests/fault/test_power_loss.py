"""The loss of power that the crash test plays, tried on small programs; and that the crash test sees what it breaks."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from typing import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from harness import Server, call, executors_of, wait_until  # noqa: E402
from power_loss import PAGE_BYTES, Disk, Left  # noqa: E402

BEGINNING = """
import os, signal, sys, threading
root = sys.argv[1]
os.chdir(root)

def sync_directory(path="."):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)

def make(name, content):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, content)
    os.fsync(fd)
    sync_directory()
    return fd
"""
END = "\nos.kill(os.getpid(), signal.SIGKILL)\n"


class Chosen:
    """In the place of the seed: what is left, and then always the same."""

    def __init__(self, left: Left, seed: int = 0):
        self.left = left
        self._draw = random.Random(seed)
        self._is_first = True

    def choice(self, values):
        first, self._is_first = self._is_first, False
        return self.left if first else self._draw.choice(values)

    def __getattr__(self, name):
        return getattr(self._draw, name)


class Watched:
    def __init__(self, directory: pathlib.Path):
        self.root = directory / "root"
        self.root.mkdir()
        self.disk = Disk(self.root, directory / "state")

    def run(self, source: str, end: str = END, lies: str = "") -> None:
        ended = self._run(source, end, lies)
        assert ended.returncode == (-signal.SIGKILL if end else 0), ended.stderr

    def refusal_of(self, source: str) -> str:
        """What the library says of a call that it does not understand."""
        ended = self._run(source, END, "")
        assert ended.returncode == -signal.SIGABRT, ended
        return ended.stderr

    def _run(self, source: str, end: str, lies: str) -> subprocess.CompletedProcess[str]:
        program = BEGINNING + textwrap.dedent(source) + end
        command = [sys.executable, "-S", "-B", "-c", program, str(self.root)]
        environment = {**os.environ, **self.disk.environment(lies)}
        return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)

    def lose(self, left: Left = Left.NOTHING, seed: int = 0) -> dict[str, bytes]:
        self.disk.lose(Chosen(left, seed))
        return self.files()

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.root)): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_what_was_synced_stays_and_what_was_not_goes(watched):
    watched.run("""
        fd = make("file", b"synced")
        os.write(fd, b" and not")
        os.pwrite(fd, b"XX", 0)
        os.writev(fd, [b"more", b"still"])
    """)
    assert watched.files() == {"file": b"XXnced and notmorestill"}
    assert watched.lose() == {"file": b"synced"}


def test_what_is_left_is_durable_from_then_on(watched):
    watched.run('os.write(make("file", b"one"), b" two")')
    watched.lose()
    watched.run('os.unlink("file"); make("other", b"")')
    assert watched.lose() == {"other": b""}


def test_a_loss_after_several_ends_takes_what_none_of_them_synced(watched):
    watched.run('os.write(make("file", b"one"), b" two")')
    watched.run('fd = os.open("file", os.O_RDWR | os.O_APPEND); os.write(fd, b" three"); os.pread(fd, 3, 0)', end="")
    assert watched.files() == {"file": b"one two three"}
    assert watched.lose() == {"file": b"one"}


def test_a_sync_takes_what_was_written_before_it_through_whatever_descriptor(watched):
    watched.run("""
        fd = make("file", b"one")
        os.write(fd, b" two")
        other = os.open("file", os.O_RDONLY)
        os.fdatasync(other)
        os.write(fd, b" three")
    """)
    assert watched.lose() == {"file": b"one two"}


def test_a_name_is_durable_with_its_directory_only(watched):
    watched.run("""
        make("kept", b"")
        fd = os.open("lost", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"synced, but nowhere")
        os.fsync(fd)
        os.mkdir("directory")
        os.close(os.open("directory/lost", os.O_WRONLY | os.O_CREAT))
        sync_directory("directory")
    """)
    assert watched.lose() == {"kept": b""}
    assert not (watched.root / "directory").exists()


def test_renames_links_and_removals_are_undone(watched):
    watched.run("""
        make("replaced", b"old")
        make("moved", b"new")
        make("removed", b"content")
        make("linked", b"linked")
        os.mkdir("empty")
        sync_directory()
        os.rename("moved", "replaced")
        os.unlink("removed")
        os.rmdir("empty")
        os.link("linked", "another")
        make_other = os.open("removed", os.O_WRONLY | os.O_CREAT)
        os.write(make_other, b"another file by that name")
    """)
    now = {"replaced": b"new", "linked": b"linked", "another": b"linked", "removed": b"another file by that name"}
    assert watched.files() == now
    assert watched.lose() == {"replaced": b"old", "moved": b"new", "removed": b"content", "linked": b"linked"}
    assert (watched.root / "empty").is_dir()


def test_truncations_are_undone(watched):
    watched.run("""
        os.truncate(make("shorter", b"0123456789"), 4)
        os.close(os.open("longer", os.O_WRONLY | os.O_CREAT))
        fd = make("longer", b"0123")
        os.ftruncate(fd, 10_000)
        os.posix_fallocate(fd, 0, 20_000)
        make("emptied", b"content")
        os.write(os.open("emptied", os.O_WRONLY | os.O_TRUNC), b"XX")
    """)
    assert watched.lose() == {"shorter": b"0123456789", "longer": b"0123", "emptied": b"content"}


def test_threads(watched):
    """Each overwrites a place of its own, and says what of it was synced."""
    watched.run("""
        make("file", bytes(8 * 512))
        def write(index):
            fd = os.open("file", os.O_RDWR)
            for turn in range(1, 100):
                os.pwrite(fd, bytes([turn]) * 512, index * 512)
                if turn % (index + 10) == 0:
                    os.fdatasync(fd)
            os.fdatasync(fd)
            os.pwrite(fd, bytes([255]) * 512, index * 512)
            barrier.wait()
            os.pwrite(fd, bytes([254]) * 512, index * 512)
        barrier = threading.Barrier(8)
        threads = [threading.Thread(target=write, args=(index,)) for index in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """)
    content = watched.lose()["file"]
    for index in range(8):
        place = content[index * 512 : index * 512 + 512]
        # What the others synced meanwhile may have taken the last but one along.
        assert place in (bytes([99]) * 512, bytes([255]) * 512)


def test_the_first_calls_may_be_left(watched, tmp_path):
    seen = set()
    for seed in range(16):
        (tmp_path / str(seed)).mkdir()
        each = Watched(tmp_path / str(seed))
        each.run("""
            fd = make("file", b"0")
            for digit in b"123": os.write(fd, bytes([digit]))
            os.rename("file", "renamed")
        """)
        [(name, content)] = each.lose(Left.FIRST, seed).items()
        seen.add((name, content))
    assert seen == {("file", b"0"), ("file", b"01"), ("file", b"012"), ("file", b"0123"), ("renamed", b"0123")}


def test_any_pages_may_be_left_and_one_torn(watched, tmp_path):
    old, new = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
    pages = set()
    for seed in range(16):
        (tmp_path / str(seed)).mkdir()
        each = Watched(tmp_path / str(seed))
        each.run(f"""
            fd = make("file", b"o" * {3 * PAGE_BYTES})
            os.pwrite(fd, b"n" * {3 * PAGE_BYTES}, 0)
        """)
        for content in each.lose(Left.ANY, seed).values():
            assert len(content) == 3 * PAGE_BYTES
            pages |= {content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)}
    assert {old, new} < pages
    for torn in pages - {old, new}:
        kept = len(torn) - len(torn.lstrip(b"n"))
        assert kept % 512 == 0 and torn[kept:] == b"o" * (PAGE_BYTES - kept)


def test_a_disk_that_lies_about_syncs(watched):
    watched.run('make("file", b"synced"); make("other", b"synced")', lies="file")
    assert watched.lose() == {"file": b"", "other": b"synced"}


def test_what_changes_unseen_is_found(watched):
    watched.run('make("file", b"synced")')
    watched.lose()
    (watched.root / "file").write_bytes(b"by another process")
    with pytest.raises(AssertionError, match="written unseen"):
        watched.lose()
    (watched.root / "file").unlink()
    with pytest.raises(AssertionError, match="went unseen"):
        watched.lose()
    watched.run('make("file", b"synced")')
    (watched.root / "unseen").touch()
    with pytest.raises(AssertionError, match="came unseen"):
        watched.lose()


def test_children_are_not_watched(watched):
    watched.run("""
        import subprocess
        assert not [name for name in os.environ if "POWER" in name or name == "LD_PRELOAD"]
        subprocess.run(["true"], check=True)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        make("file", b"synced")
    """)
    assert watched.lose() == {"file": b"synced"}


CHECKPOINT = """
os.mkdir("content")
sync_directory()
fd = make("content/1.sst", b"synced")
sync_directory("content")
os.mkdir("content/checkpoint.tmp")
os.link("content/1.sst", "content/checkpoint.tmp/1.sst")
os.write(os.open("content/checkpoint.tmp/CURRENT", os.O_WRONLY | os.O_CREAT), b"copied")
os.rename("content/checkpoint.tmp", "content/checkpoint")
"""


def test_a_checkpoint_is_not_watched_but_the_files_are_that_it_links_to(watched):
    watched.run(CHECKPOINT + 'os.write(fd, b" and not"); os.unlink("content/1.sst")')
    assert watched.files() == {"content/checkpoint/1.sst": b"synced and not", "content/checkpoint/CURRENT": b"copied"}
    names = ["content/1.sst", "content/checkpoint/1.sst"]
    assert watched.lose() == {**dict.fromkeys(names, b"synced"), "content/checkpoint/CURRENT": b"copied"}


def test_a_file_comes_back_that_a_checkpoint_had_the_last_link_to(watched):
    watched.run(CHECKPOINT + """
os.write(fd, b" and not")
os.unlink("content/1.sst")
for name in os.listdir("content/checkpoint"): os.unlink("content/checkpoint/" + name)
os.rmdir("content/checkpoint")
""")
    assert watched.files() == {}
    assert watched.lose() == {"content/1.sst": b"synced"}


def test_a_sync_through_a_checkpoint_counts(watched):
    watched.run(CHECKPOINT + """
os.write(fd, b" later")
os.fsync(os.open("content/checkpoint/1.sst", os.O_RDONLY))
os.write(fd, b" and not")
""")
    assert watched.lose()["content/1.sst"] == b"synced later"


def test_a_checkpoint_goes_with_the_directory_around_it(watched):
    watched.run("""
        os.mkdir("content")
        os.mkdir("content/checkpoint")
        os.open("content/checkpoint/CURRENT", os.O_WRONLY | os.O_CREAT)
    """)
    assert watched.lose() == {}
    assert not (watched.root / "content").exists()


@pytest.mark.parametrize(
    "change",
    [
        'os.open("content/checkpoint/1.sst", os.O_WRONLY)',
        'os.open("content/checkpoint/1.sst", os.O_RDONLY | os.O_TRUNC)',
        'os.truncate("content/checkpoint/1.sst", 0)',
        'os.link("content/checkpoint/CURRENT", "content/CURRENT")',
        'os.rename("content/checkpoint/CURRENT", "content/CURRENT")',
        'os.rename("content/checkpoint", "content/another")',
        'os.mkdir("directory"); os.rename("directory", "another")',
    ],
)
def test_what_would_confuse_the_journal_is_refused(watched, change):
    assert re.match("power loss: .* understood", watched.refusal_of(CHECKPOINT + change))
    assert watched.files().keys() >= {"content/checkpoint/1.sst", "content/checkpoint/CURRENT"}


def test_the_control_socket_is_not_watched(watched):
    listen = 'import socket; socket.socket(socket.AF_UNIX).bind("control.sock"); make("file", b"synced")\n'
    watched.run(listen)
    assert watched.lose() == {"file": b"synced"}
    watched.run('os.unlink("control.sock"); ' + listen)
    assert watched.lose() == {"file": b"synced"}


def rows_of_outbox(server: Server) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{server.data_dir / 'queue.sqlite3'}?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM outbox").fetchone()[0]


@pytest.mark.parametrize("unsynced", ["queue.sqlite3-wal", ".log"])
def test_what_a_start_finds_unsynced_is_durable_before_anybody_hears_of_it(tmp_path, unsynced):
    """A server is killed before a sync; the next one finds what it wrote, says so, and dies with its machine."""
    disk = Disk(tmp_path / "data", tmp_path / "state")

    @contextlib.contextmanager
    def server_that_is_killed(lies: str = "") -> Iterator[Server]:
        server = Server(tmp_path / "data", "--num-workers", "1", environment=disk.environment(lies)).start()
        try:
            yield server
        finally:
            server.kill()
        wait_until(lambda: not executors_of(server.data_dir), "its executors end")

    with server_that_is_killed():
        pass
    with server_that_is_killed(lies=unsynced) as server:
        told = server.post(call("def main():\n    return 'x' * 200_000\n"))
        path = f"/requests/{told.headers['x-request-id']}"
        wait_until(lambda: not rows_of_outbox(server), "its audit is copied, and the next start has nothing to write")
    with server_that_is_killed() as server:
        assert server.request("GET", path + "/result").body == told.body
    disk.lose(Chosen(Left.NOTHING))
    with server_that_is_killed() as server:
        assert server.request("GET", path + "/result").body == told.body
