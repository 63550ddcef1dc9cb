"""Contract sections 5 and 6: outcomes, output, deadlines, and the kinds of instruction errors."""

from __future__ import annotations

import json
import threading

import pytest

from harness import Program, Server, call, running_server, wait_until


class TestErrorKinds:
    @pytest.mark.parametrize(
        "source, fragment",
        [
            ("def main(:\n", "main(:"),
            ("x = 1 // 0\n", "by zero"),
            ("import no_such_module\n", "no_such_module"),
            ("raise SystemExit(3)\n", "SystemExit"),
            ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
            ("class Own(BaseException): pass\nraise Own('mine')\n", "mine"),
        ],
    )
    def test_parse_while_a_module_is_loaded(self, server: Server, source, fragment):
        error = server.run(source).error
        assert error["kind"] == "parse" and (error["instruction_index"], error["instruction_op"]) == (0, "upload")
        assert error["instruction_id"] == "module" and fragment in error["message"] + error["traceback"]

    def test_parse_for_a_name_that_the_module_does_not_define(self, server):
        error = server.run("def mian(): pass\n").error
        assert error["kind"] == "parse" and "main" in error["message"] and error["instruction_op"] == "get_function"

    @pytest.mark.parametrize(
        "body, kind, fragment",
        [
            ("raise ValueError('bad value')", "runtime", "bad value"),
            ("assert 1 == 2, 'one is not two'", "correctness", "one is not two"),
            ("import numpy; numpy.testing.assert_allclose([1.0], [2.0])", "correctness", "Not equal to tolerance"),
            ("import sys; sys.exit(3)", "runtime", "3"),
            ("raise KeyboardInterrupt", "runtime", "KeyboardInterrupt"),
            ("raise GeneratorExit", "runtime", "GeneratorExit"),
            ("import os; os._exit(5)", "runtime", "5"),
            ("import os; os.kill(os.getpid(), 9)", "runtime", "SIGKILL"),
            ("import os; os.kill(os.getpid(), 15)", "runtime", "SIGTERM"),
            ("import os; os.abort()", "runtime", "SIGABRT"),
            ("import ctypes; ctypes.string_at(0)", "runtime", "SIGSEGV"),
            ("from kcoral.builtins import benchmark; benchmark(main)", "unavailable", "GPU"),
            ("from kcoral.builtins import compile_tirx; compile_tirx(None)", "unavailable", "TVM"),
        ],
    )
    def test_in_a_run(self, server, body, kind, fragment):
        result = server.run(f"def main():\n    print('before', flush=True)\n    {body}\n")
        assert result.status == "FAILED" and result.stdout == "before\n"
        assert result.error["kind"] == kind, result.error
        assert fragment in result.error["message"] and result.error["instruction_op"] == "run"

    def test_not_callable(self, server):
        error = server.run("main = 5\n").error
        assert error["kind"] == "runtime" and "callable" in error["message"]

    def test_a_message_that_cannot_be_made_is_the_name_of_the_type(self, server):
        source = "class Sulky(Exception):\n    def __str__(self):\n        raise ValueError\n\ndef main():\n    raise Sulky\n"
        assert "Sulky" in server.run(source).error["message"]

    def test_a_long_traceback_keeps_its_end(self, server):
        error = server.run("def main(n=900):\n    return main(n - 1) if n else [][0]  # the end\n").error
        assert len(error["traceback"].encode()) <= 8192 and error["traceback"].rstrip().endswith("list index out of range")

    def test_a_failed_program_has_what_came_before_a_crash(self, server):
        program = Program()
        module = program.module("import os\ndef one():\n    return b'kept'\n\ndef crash():\n    print('last words')\n    os.abort()\n")
        program.give("one", program.call(module, "one"))
        program.call(module, "crash", id="crash")
        result = server.execute(program)
        assert result.values == {"one": b"kept"} and result.stdout == "last words\n"
        assert result.error["instruction_id"] == "crash"


class TestOutput:
    def test_both_streams_apart_from_python_and_from_below(self, server):
        source = (
            "import os, sys\ndef main():\n"
            "    print('out'); print('err', file=sys.stderr); os.write(1, b'raw\\n'); os.system('echo shell; echo bad >&2')\n"
        )
        result = server.run(source)
        assert (result.stdout, result.stderr) == ("out\nraw\nshell\n", "err\nbad\n")
        assert result.document["stdout_truncated"] is result.document["stderr_truncated"] is False

    @pytest.mark.parametrize("limit", [0, 1, 100])
    def test_cut_at_a_byte_limit(self, server, limit):
        result = server.run("def main():\n    print('é' * 1000)\n", output_limit_bytes=limit)
        kept = ("é" * 1000 + "\n").encode()[:limit].decode("utf-8", "replace")
        assert result.stdout == kept and result.document["stdout_truncated"] is True
        assert result.document["stderr_truncated"] is False

    def test_bytes_that_are_not_utf8_are_replaced(self, server):
        result = server.run("import os\ndef main():\n    os.write(1, b'a\\xff\\xe2\\x82b\\xf0\\x90')\n")
        assert result.stdout == b"a\xff\xe2\x82b\xf0\x90".decode("utf-8", "replace")

    def test_a_flood_is_drained(self, server):
        result = server.run("import os\ndef main():\n    for _ in range(512): os.write(1, b'x' * 65536)\n    return 'done'\n")
        assert result.value() == "done" and len(result.stdout) == 2**20 and result.document["stdout_truncated"]


class TestDeadline:
    @pytest.mark.parametrize(
        "body",
        [
            "import time; time.sleep(3600)",
            "while True: pass",
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()",
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
            "import subprocess; subprocess.run(['sleep', '3600'])",
        ],
    )
    def test_ends_the_program_and_names_the_instruction(self, server, body):
        message = server.post(call(f"def main():\n    {body}\n", timeout_seconds=2)).error(504, "timeout")
        assert "instructions[2]" in message and "2 s" in message

    def test_the_slot_is_ready_again(self, server):
        for _ in range(2 * server.health()["load"]["request_capacity"]):
            server.post(call("def main():\n    while True: pass\n", timeout_seconds=0.2)).error(504, "timeout")
        assert server.run("def main():\n    return 1\n").value() == 1


class TestLeftovers:
    @pytest.mark.parametrize(
        "body",
        [
            "import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()",
            "import atexit, time; atexit.register(time.sleep, 3600)",
            "import subprocess; subprocess.Popen(['sleep', '3600'])",
            "import os, time\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(3600)",
        ],
    )
    def test_neither_delay_nor_change_the_answer(self, server, body):
        result = server.run(f"def main():\n    {body}\n    return 'answer'\n", timeout_seconds=60)
        assert result.value() == "answer" and result.document["elapsed_ms"] < 30_000

    def test_a_forked_child_that_returns_does_not_answer_for_its_parent(self, server):
        source = (
            "import os\ndef main():\n    child = os.fork()\n    if child == 0:\n        return 'child'\n"
            "    os.waitpid(child, 0)\n    return 'parent'\n"
        )
        assert server.run(source).value() == "parent"

    def test_a_forked_child_that_raises_does_not_either(self, server):
        source = (
            "import os\ndef main():\n    child = os.fork()\n    if child == 0:\n        raise ValueError('child')\n"
            "    os.waitpid(child, 0)\n    return 'parent'\n"
        )
        assert server.run(source).value() == "parent"


class TestAnswerSizes:
    def test_an_answer_over_the_limit_is_response_too_large(self):
        with running_server("--max-response-bytes", "100000") as small:
            message = small.post(call("def main():\n    return b'x' * 100_000\n")).error(500, "response_too_large")
            assert "100000" in message
            assert len(small.run("def main():\n    return b'x' * 90_000\n").value()) == 90_000

    def test_a_large_answer_and_a_large_blob(self, server):
        size = 48 * 2**20
        program = Program()
        blob = program.add("upload", id="b", kind="bytes", blob=program.blob(b"\x5a" * size))
        program.give("back", blob)
        assert server.execute(program).value("back") == b"\x5a" * size


class TestBusy:
    def test_waiting_too_long_for_a_worker_is_busy(self):
        with running_server("--num-workers", "1", "--worker-wait-timeout-seconds", "1") as server:
            blocker = call("import time\ndef main():\n    time.sleep(60)\n", timeout_seconds=8)
            first = threading.Thread(target=lambda: server.post(blocker))
            first.start()
            wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the first program runs")
            reply = server.post(call("def main():\n    return 1\n"))
            assert reply.error(503, "busy") and int(reply.headers["retry-after"]) >= 1
            first.join()


def test_times_are_those_of_the_run(server: Server):
    result = server.run("import time\ndef main():\n    time.sleep(0.3)\n")
    assert 300 <= result.document["elapsed_ms"] < 60_000
    assert result.document["lease_wait_ms"] == result.document["lease_held_ms"] == 0


def test_health(server: Server):
    reply = server.request("GET", "/health")
    health = json.loads(reply.body)
    assert set(health) == {"status", "instance_id", "started_at", "gpu_count", "load", "target", "versions"}
    assert (health["status"], health["gpu_count"], health["target"]) == ("ok", 0, {})
    assert set(health["load"]) == {"request_capacity", "requests_in_progress", "requests_waiting"}
    assert health["load"]["request_capacity"] == 2
    assert health["started_at"].endswith("Z") and {"kcoral", "python", "numpy"} <= set(health["versions"])
    assert all(isinstance(version, str) for version in health["versions"].values())
