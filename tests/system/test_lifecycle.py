"""Starting, stopping and dying: what the operator sees, and what becomes of what was accepted."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import uuid

import pytest

from harness import KCORAL, PATIENCE_S, Server, call, executors_of, family, running_server, still_runs, wait_until

QUICK = call("def main():\n    return 42\n")


def run_to_end(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(KCORAL), "server", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)


def complaint(process: subprocess.CompletedProcess[str]) -> str:
    """The one clear line of a server that could not start."""
    assert process.returncode == 1, process
    lines = [line for line in process.stderr.splitlines() if line.startswith("kcoral server: ")]
    assert len(lines) == 1 and process.stdout == "", process
    return lines[0]


class TestStart:
    def test_the_ready_line_says_what_runs(self, server):
        line = server.ready_line
        for expected in ("http://127.0.0.1:", "2 workers", "Python 3.", "sandbox bubblewrap", str(server.data_dir)):
            assert expected in line
        assert line.count("\n") == 1

    def test_port_in_use(self, data_dir):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            assert port in complaint(run_to_end("--port", port, "--data-dir", str(data_dir)))

    def test_data_directory_that_cannot_be_written(self, tmp_path):
        blocker = tmp_path / "file"
        blocker.write_text("")
        assert str(blocker) in complaint(run_to_end("--port", "0", "--data-dir", str(blocker / "data")))

    def test_data_directory_in_use(self, server):
        assert str(server.data_dir) in complaint(run_to_end("--port", "0", "--data-dir", str(server.data_dir)))

    def test_missing_python(self, data_dir):
        said = complaint(run_to_end("--port", "0", "--data-dir", str(data_dir), "--python", "/nowhere/python3"))
        assert "/nowhere/python3" in said

    def test_no_sandbox(self, data_dir):
        if os.geteuid() != 0:
            pytest.skip("needs root to hide bubblewrap")
        hide = 'mount --bind /dev/null /usr/bin/bwrap && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", hide, "sh", str(KCORAL), "server", "--port", "0", "--data-dir", str(data_dir)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        assert "bubblewrap" in complaint(process) or "bwrap" in complaint(process)

    def test_a_preload_that_cannot_be_imported_is_named(self, data_dir):
        said = complaint(run_to_end("--port", "0", "--data-dir", str(data_dir), "--preload", "no_such_module"))
        assert "no_such_module" in said

    def test_help_is_for_people(self):
        text = run_to_end("--help").stdout
        for flag in ("--device", "--num-workers", "--data-dir", "--host", "--port", "--python", "--preload", "--allowed-host"):
            assert flag in text
        assert "KCORAL_SERVER_PORT" in text and "KCORAL_SERVER_HOST" in text and "KCORAL_SERVER_DEVICE" in text

    def test_bad_usage_is_exit_code_2(self):
        process = run_to_end("--num-workers", "0")
        assert process.returncode == 2 and "--num-workers" in process.stderr

    def test_a_flag_wins_over_its_variable(self, data_dir):
        variables = {"KCORAL_SERVER_HOST": "localhost-nowhere.invalid", "KCORAL_SERVER_PORT": "1"}
        server = Server(data_dir, "--host", "127.0.0.1", environment=variables).start()
        assert server.health()["status"] == "ok"
        assert server.stop() == 0

    @pytest.mark.parametrize("name", ["KCORAL_DIR", "CUDA_VISIBLE_DEVICES", "HOME", "TMPDIR"])
    def test_variables_that_are_set_for_each_program_cannot_be_given(self, name):
        process = run_to_end("--env", f"{name}=x")
        assert process.returncode == 2 and name in process.stderr

    def test_exposing_the_data_directory_is_refused(self, data_dir):
        data_dir.parent.joinpath("link").symlink_to(data_dir.parent)
        for path in (data_dir.parent, data_dir.parent / "link"):
            assert "--expose" in complaint(run_to_end("--port", "0", "--data-dir", str(data_dir), "--expose", str(path)))

    def test_what_is_exposed_can_be_read(self, data_dir):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as models:
            os.chmod(models, 0o755)
            pathlib.Path(models, "weights").write_text("1 2 3")
            with running_server("--expose", models) as server:
                source = f"def main():\n    return open({models + '/weights'!r}).read()\n"
                assert server.run(source).value() == "1 2 3"

    def test_a_named_host_on_loopback_can_be_allowed(self):
        with running_server("--allowed-host", "gpu-box.example") as server:
            assert server.request("GET", "/health", headers={"Host": "gpu-box.example"}).status == 200
            assert server.request("GET", "/health", headers={"Host": "other.example"}).status == 403


class TestStop:
    def slow(self, seconds: float) -> threading.Thread:
        return call(f"import time\ndef main():\n    time.sleep({seconds})\n    return 'finished'\n")

    def test_finishes_what_runs_refuses_what_comes_and_keeps_what_is_queued(self, data_dir):
        server = Server(data_dir, "--num-workers", "1").start()
        replies: dict[str, object] = {}
        ids = {name: str(uuid.uuid4()) for name in ("running", "queued")}
        programs = {"running": self.slow(2), "queued": QUICK}

        def post(name):
            replies[name] = server.post(programs[name], X_Request_ID=ids[name])

        threads = {name: threading.Thread(target=post, args=(name,)) for name in programs}
        threads["running"].start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the first program runs")
        threads["queued"].start()
        wait_until(lambda: server.health()["load"]["requests_waiting"] == 1, "the second program waits")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.health()["status"] == "stopping", "the server says that it stops")
        assert server.post(QUICK).error(503, "busy")
        assert server.process.wait(PATIENCE_S) == 0
        for thread in threads.values():
            thread.join()
        assert replies["running"].result().value() == "finished"
        assert "X-Request-ID" in replies["queued"].error(503, "busy")
        assert replies["queued"].headers["x-request-id"] == ids["queued"]
        server.process.stdout.close()

        again = Server(data_dir, "--num-workers", "1").start()
        assert again.post(QUICK, X_Request_ID=ids["queued"]).result().value() == 42
        assert again.post(programs["running"], X_Request_ID=ids["running"]).body == replies["running"].body
        assert again.stop() == 0

    def test_a_second_signal_ends_at_once(self, data_dir):
        server = Server(data_dir).start()
        thread = threading.Thread(target=lambda: pytest.raises(Exception, server.post, self.slow(600)))
        thread.start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: server.health()["status"] == "stopping", "the server says that it stops")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 128 + signal.SIGINT
        thread.join()
        server.process.stdout.close()
        wait_until(lambda: not executors_of(server.data_dir), "its executors end with it")

    def test_what_outlasts_the_grace_period_is_interrupted(self, data_dir):
        server = Server(data_dir, "--shutdown-grace-seconds", "1").start()
        replies = []
        thread = threading.Thread(target=lambda: replies.append(server.post(self.slow(600))))
        thread.start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        assert server.stop() == 0
        thread.join()
        assert replies[0].error(500, "engine")


class TestDeath:
    def test_after_kill_9_nothing_admitted_is_lost_and_nothing_runs_on(self, data_dir):
        server = Server(data_dir, "--num-workers", "1").start()
        done, running, queued = (str(uuid.uuid4()) for _ in range(3))
        first = server.post(QUICK, X_Request_ID=done)
        endless = call("import time\ndef main():\n    time.sleep(600)\n")
        threads = [threading.Thread(target=lambda: pytest.raises(Exception, server.post, endless, X_Request_ID=running))]
        threads[0].start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        threads.append(threading.Thread(target=lambda: pytest.raises(Exception, server.post, QUICK, X_Request_ID=queued)))
        threads[1].start()
        wait_until(lambda: server.health()["load"]["requests_waiting"] == 1, "the other program waits")
        old = family(server.pid)
        server.kill()
        for thread in threads:
            thread.join()

        again = Server(data_dir, "--num-workers", "1").start()
        wait_until(lambda: not any(map(still_runs, old)), "the old processes are gone")
        assert again.post(QUICK, X_Request_ID=done).body == first.body
        assert again.post(QUICK, X_Request_ID=queued).result().value() == 42
        assert "server" in again.post(endless, X_Request_ID=running).error(500, "engine")
        assert again.stop() == 0

    def test_a_second_attempt_runs_after_kill_9(self, data_dir):
        server = Server(data_dir).start()
        id = str(uuid.uuid4())
        program = call("import time\ndef main():\n    time.sleep(3)\n    return 'ran'\n", max_attempts=2)
        thread = threading.Thread(target=lambda: pytest.raises(Exception, server.post, program, X_Request_ID=id))
        thread.start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        server.kill()
        thread.join()
        again = Server(data_dir).start()
        assert again.post(program, X_Request_ID=id).result().value() == "ran"
        assert again.stop() == 0

    def test_an_executor_that_dies_costs_one_request_and_no_slot(self, data_dir):
        server = Server(data_dir, "--num-workers", "1").start()
        replies = []
        program = call("import time\ndef main():\n    time.sleep(600)\n")
        thread = threading.Thread(target=lambda: replies.append(server.post(program)))
        thread.start()
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        for pid in executors_of(data_dir):
            os.kill(pid, signal.SIGKILL)
        thread.join()
        assert replies[0].error(500, "engine")
        assert server.post(QUICK).result().value() == 42
        assert server.stop() == 0

    def test_acknowledged_outcomes_survive_kill_9_under_load(self, data_dir):
        server = Server(data_dir, "--num-workers", "2").start()
        answered: dict[str, bytes] = {}
        sent: set[str] = set()
        stop = threading.Event()

        def client(number: int):
            while not stop.is_set():
                id = str(uuid.uuid4())
                sent.add(id)
                try:
                    reply = server.post(call(f"def main():\n    return {number}\n"), X_Request_ID=id)
                except Exception:
                    return
                answered[id] = reply.body

        threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answered) >= 20, "twenty programs were answered")
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        again = Server(data_dir, "--num-workers", "2").start()
        programs = [call(f"def main():\n    return {n}\n") for n in range(4)]
        for id, body in answered.items():
            number = json.loads(body)["results"]["value"]["value"]
            assert again.post(programs[number], X_Request_ID=id).body == body
        assert again.stop() == 0


def test_a_server_that_is_an_ordinary_user(tmp_path_factory):
    """As root, start the server as nobody: it must work without any privilege."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    directory = pathlib.Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    os.chmod(directory, 0o777)
    build = KCORAL.parents[1]
    reachable = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(KCORAL), "--version"], capture_output=True)
    if reachable.returncode != 0:
        pytest.skip(f"{build} is not readable for nobody")
    process = subprocess.Popen(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(KCORAL), "server", "--port", "0", "--data-dir", str(directory / "data")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        match = re.search(r"http://[^ ]*:(\d+)", line)
        assert match, process.stderr.read()
        server = Server(directory / "data")
        server.port = int(match.group(1))
        assert server.run("import os\ndef main():\n    return os.getuid()\n").value() == 65534
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        process.stdout.close()
        process.stderr.close()
        subprocess.run(["rm", "-rf", str(directory)], check=True)
