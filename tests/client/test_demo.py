"""scripts/demo leaves nothing running and nothing behind, however it ends. The server here is a stand-in."""

import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SERVER = """#!/bin/bash
echo $$ >"$STATE/pid"
printf '%s\\n' "$@" >"$STATE/arguments"
[[ $BEHAVIOUR == dies ]] && { echo "kcoral server: no sandbox here" >&2; exit 1; }
trap 'echo stopped >"$STATE/stopped"; exit 0' TERM
echo "kcoral 0.1.0 ready at http://127.0.0.1:4321 · 2 workers · data in somewhere"
while :; do read -r -t 0.05 <>"$STATE/never" || true; done
"""

EXPERIMENTS = """
import os, pathlib, sys
state = pathlib.Path(os.environ["STATE"])
(state / "url").write_text(sys.argv[1])
if os.environ["BEHAVIOUR"] == "fails":
    sys.exit("this experiment went wrong")
if os.environ["BEHAVIOUR"] == "waits":
    (state / "waiting").touch()
    open(state / "never").read()
print("experiments ran")
"""


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        select.select([], [], [], 0.01)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def house(tmp_path):
    """A tree with the real scripts/demo and stand-ins for all that it calls."""
    scripts = {"setup": "#!/bin/sh\n", "build": '#!/bin/sh\necho "building $*"\n', "demo_experiments.py": EXPERIMENTS}
    for name, text in {
        **{f"scripts/{name}": text for name, text in scripts.items()},
        "build/release/bin/kcoral": SERVER,
    }.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    shutil.copy(ROOT / "scripts" / "demo", tmp_path / "house" / "scripts" / "demo")
    for name in ("state", "tmp"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "state" / "never")
    return tmp_path


def start_demo(house, behaviour):
    environment = {**os.environ, "STATE": str(house / "state"), "TMPDIR": str(house / "tmp"), "BEHAVIOUR": behaviour}
    return subprocess.Popen(
        [house / "house" / "scripts" / "demo"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def assert_nothing_is_left(house):
    assert not is_running(int((house / "state" / "pid").read_text()))
    assert list((house / "tmp").iterdir()) == []


def test_all_goes_well(house):
    demo = start_demo(house, "works")
    output, errors = demo.communicate(timeout=60)
    assert demo.returncode == 0, errors
    assert "building release kcoral kcoral-executor" in output and "experiments ran" in output
    assert (house / "state" / "url").read_text() == "http://127.0.0.1:4321"
    assert (house / "state" / "stopped").exists()
    arguments = (house / "state" / "arguments").read_text().split("\n")
    assert arguments[:5] == ["server", "--device", "cpu", "--num-workers", "2"]
    assert arguments[arguments.index("--port") + 1] == "0"
    assert_nothing_is_left(house)


def test_an_experiment_fails(house):
    demo = start_demo(house, "fails")
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "this experiment went wrong" in errors and "did not go as it should" in errors
    assert (house / "state" / "stopped").exists()
    assert_nothing_is_left(house)


def test_the_server_does_not_start(house):
    demo = start_demo(house, "dies")
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1 and "no sandbox here" in errors
    assert_nothing_is_left(house)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("everyone", [True, False], ids=["as a terminal does", "the script alone"])
def test_it_is_interrupted(house, number, code, everyone):
    demo = start_demo(house, "waits")
    wait_for((house / "state" / "waiting").exists)
    os.killpg(demo.pid, number) if everyone else os.kill(demo.pid, number)
    demo.communicate(timeout=60)
    assert demo.returncode == code
    assert_nothing_is_left(house)
