"""Starts the server of an installation, runs programs through its own Python client, and stops the server again.

Usage: try_installed.py DIRECTORY [ARGUMENT...]      the arguments are the server's

It needs Python alone, and says what it saw; the exit code is 1 where something is not as it should be.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 60
WHERE = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
sys.path.insert(0, str(WHERE / "client/python"))

from kcoral import Client, Program  # noqa: E402

SOURCE = """
import os

def look(word):
    print(f"looking at {word}")
    with open("seen.txt", "w") as file:
        file.write(word)
    processes = [name for name in os.listdir("/proc") if name.isdecimal()]
    return {"uid": os.getuid(), "processes": len(processes)}

def judge(uid):
    assert uid == 0, "programs are not root"
"""


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"   This is not as it should be: {what}")


@contextmanager
def server(arguments: Sequence[str]) -> Iterator[str]:
    """A server of this installation on a free port; its address."""
    with tempfile.TemporaryDirectory(prefix="kcoral-try-") as directory, open(f"{directory}/log", "w+") as log:
        command = [str(WHERE / "bin/kcoral"), "server", "--port", "0", "--data-dir", f"{directory}/data", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            address = re.search(r"http://\S+", ready)
            if address is None:
                process.wait(STOP_SECONDS)
                log.seek(0)
                raise SystemExit(f"   The server did not start. It said:\n{ready}{log.read()}")
            print(f"   {ready.rstrip()}")
            yield address[0]
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        expect(process.returncode == 0, f"the server ended with {process.returncode}")


def program_of_steps() -> Program:
    program = Program()
    module = program.upload(kind="module", source=SOURCE)
    seen = program.run(fn=program.get_function(module=module, name="look"), args=["the slot"])
    program.return_(key="seen", value=seen)
    program.return_file(key="file", path="seen.txt")
    program.run(id="judge", fn=program.get_function(module=module, name="judge"), args=[1])
    return program


def try_programs(url: str) -> None:
    with Client(url) as client:
        result = client.execute(program_of_steps(), timeout_seconds=60)
    seen = result.results["seen"]
    expect(result.error is not None and result.error.kind == "correctness", f"the error is {result.error}")
    expect(result.results["file"].data == b"the slot", "another file came back")
    expect(result.stdout == "looking at the slot\n", f"it printed {result.stdout!r}")
    expect(seen["uid"] != 0, "the program ran as root")
    expect(seen["processes"] == 2, f"the program saw {seen['processes']} processes")
    print(f"   A program ran as uid {seen['uid']}, saw {seen['processes']} processes, returned values and a file, and")
    print(f"   then failed as it was meant to: {result.error.kind} error in {result.error.instruction_id!r}.")


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(f"   uid {os.getuid()}, installed in {WHERE}")
    with server(sys.argv[2:]) as url:
        try_programs(url)


if __name__ == "__main__":
    main()
