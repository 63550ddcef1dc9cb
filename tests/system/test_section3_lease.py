"""Leases of GPUs (contract sections 2 and 3), on devices that are not there."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections import defaultdict
from typing import Callable

import pytest

from fake_gpus import GpuServer, Pending, gpu_server
from harness import Program, process, wait_until


@pytest.fixture(scope="module")
def one():
    """One device and five workers. None stands by, so that whoever waits for the device is a program."""
    with gpu_server([0], "--workers-per-gpu", "5", "--standby-runtimes", "0") as served:
        yield served


@pytest.fixture(scope="module")
def two():
    """Two devices with two workers each, and one for programs that need both."""
    with gpu_server([0, 3], "--workers-per-gpu", "2", "--standby-runtimes", "0") as served:
        yield served


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


class TestOneDevice:
    def test_the_holder_is_shown_while_it_holds(self, one: GpuServer):
        pending, word = one.hold()
        one.wait_for_holder(pending)
        holder = one.look()[0]["holder"]
        assert set(holder) == {"request_id", "executor", "since"} and holder["executor"].startswith("executor-")
        one.say(word)
        document = pending.reply().result().document
        assert 0 < document["lease_held_ms"] <= document["elapsed_ms"]
        one.wait_until_free()

    def test_two_programs_never_hold_it_at_once(self, one: GpuServer):
        sent = []
        for _ in range(5):
            program = Program()
            module = program.module(one.source)
            for run in range(3):
                program.give(f"gpu-{run}", program.call(module, "spin", [0.003]))
                program.give(f"cpu-{run}", program.call(module, "spin", [0.003], cpu_only=True))
            sent.append(Pending(one.server, program))
        results = [pending.reply().result() for pending in sent]
        held = sorted(result.value(f"gpu-{run}") for result in results for run in range(3))
        assert not any(overlap(earlier, later) for earlier, later in zip(held, held[1:]))

    def test_first_come_first_served_and_priority_before(self, one: GpuServer):
        holder, word = one.hold()
        one.wait_for_holder(holder)
        waiting = []
        for waiters, priority in enumerate([0, -7, 0, 100], start=1):
            waiting.append(one.begin("spin", 0, priority=priority))
            one.wait_for_waiters(waiters)
        one.say(word)
        first, low, second, high = [pending.value()[0] for pending in waiting]
        assert holder.value()[1] <= high < first < second < low

    def test_waiting_is_no_part_of_the_deadline(self, one: GpuServer):
        holder, word = one.hold()
        one.wait_for_holder(holder)
        waiting = one.begin("spin", 0, timeout_seconds=0.5)
        one.wait_for_waiters(1)
        lasting = one.begin("spin", 0.6, priority=1)  # longer than that deadline
        one.wait_for_waiters(2)
        one.say(word)
        document = waiting.reply().result().document
        assert document["status"] == "COMPLETED" and document["lease_wait_ms"] > 500
        assert lasting.value()

    def test_cpu_only_work_runs_beside_the_holder(self, one: GpuServer):
        first, beside, last = (str(uuid.uuid4()) for _ in range(3))
        program = Program()
        module = program.module(one.source)
        program.give("first", program.call(module, "hold", [first]))
        program.give("beside", program.call(module, "hold", [beside], cpu_only=True))
        program.give("last", program.call(module, "hold", [last]))
        alternating = Pending(one.server, program)
        one.wait_for_holder(alternating)
        other, word = one.hold()
        one.wait_for_waiters(1)
        one.say(first)
        one.wait_for_holder(other)  # while the other one is in its cpu_only run
        one.say(beside)
        one.wait_for_waiters(1)  # it wants the lease back
        assert not alternating.is_answered
        one.say(word)
        one.wait_for_holder(alternating)
        one.say(last)
        result = alternating.reply().result()
        held = other.value()
        assert not overlap(result.value("first"), held) and not overlap(result.value("last"), held)
        assert result.document["lease_wait_ms"] > 0

    def test_what_needs_no_gpu_needs_no_lease(self, one: GpuServer):
        holder, word = one.hold()
        one.wait_for_holder(holder)
        program = Program()
        program.add("upload", id="bytes", kind="bytes", blob=program.blob(b"abc"))
        program.add("upload", id="file", kind="file", blob=program.blob(b"abc"), path="a/b")
        program.add("upload", id="cuda", kind="module", language="cuda", source="__global__ void f() {}")
        program.add("get_function", id="f", module={"$ref": "cuda"}, name="f")
        program.give("bytes", {"$ref": "bytes"})
        program.add("return", key="file", kind="file", path="a/b")
        result = one.server.execute(program)
        assert (result.value("bytes"), result.value("file")) == (b"abc", b"abc")
        assert result.document["lease_wait_ms"] == result.document["lease_held_ms"] == 0
        one.say(word)
        assert holder.value()

    @pytest.mark.parametrize("count", [2, 8, 9, 0, -1, 1.5, "1"])
    def test_more_devices_than_the_server_has_are_refused(self, one: GpuServer, count):
        program = Program([{"op": "upload", "id": "m", "kind": "module", "source": ""}], {"gpu_count": count})
        assert "gpu_count" in one.server.post(program).error(400, "parse")


@pytest.mark.parametrize("programs", ["0", "1"])
def test_a_module_that_does_not_compile_waits_for_no_lease(programs):
    flags = ("--workers-per-gpu", "2", "--standby-runtimes", "0", "--max-requests-per-worker", programs)
    with gpu_server([0], *flags) as served:
        for _ in range(3):
            holder, word = served.hold()
            served.wait_for_holder(holder)
            bad = Program()
            bad.module("def f(:")
            error = served.server.post(bad).result().document["error"]
            assert (error["kind"], error["instruction_index"]) == ("parse", 0)
            wait_until(lambda: served.look()[0]["waiters"] == 0, "nobody waits")
            served.say(word)
            assert holder.value()
            served.wait_until_free()


def test_a_process_that_serves_several_programs_has_the_lease_only_for_them():
    with gpu_server([0], "--workers-per-gpu", "2", "--max-requests-per-worker", "0") as served:
        processes: set[int] = set()
        for _ in range(3):
            first, word = served.hold("hold_context")
            served.wait_for_holder(first)
            second = served.begin("hold_context", word)
            wait_until(lambda: served.look()[0]["waiters"] > 0, "the second one waits")
            served.say(word)
            assert first.value() and second.value()
            served.wait_until_free()
            wait_until(lambda: len(served.users_of(0)) == 4, "of each worker a process, and one that stands by")
            processes |= set(served.users_of(0))
        assert len(processes) == 4, "each went on with its context"


class TestHoldersThatDie:
    """Whoever waits goes on."""

    def check(self, one: GpuServer, dying: Pending, end: Callable[[], None]) -> None:
        one.wait_for_holder(dying)
        waiting = one.begin("spin", 0)
        one.wait_for_waiters(1)
        end()
        assert waiting.value()
        one.wait_until_free()
        assert one.look()[0]["health"] == "ok"

    def process_of(self, one: GpuServer) -> int:
        """Of the one program that has a context."""
        return wait_until(lambda: one.users_of(0), "the program has a context")[0]

    def test_by_a_signal_of_their_own(self, one: GpuServer):
        dying = one.begin("die", "die")
        self.check(one, dying, lambda: one.say("die"))
        result = dying.reply().result()
        assert result.status == "FAILED" and result.error["kind"] == "runtime" and "SIGKILL" in result.error["message"]

    def test_by_a_signal_from_outside(self, one: GpuServer):
        dying = one.begin("hold_context", "never")
        self.check(one, dying, lambda: os.kill(self.process_of(one), signal.SIGKILL))
        assert "SIGKILL" in dying.reply().result().error["message"]
        assert one.users_of(0) == []

    def test_by_their_deadline(self, one: GpuServer):
        dying = one.begin("hold_context", "never", timeout_seconds=1)
        self.check(one, dying, lambda: None)
        assert "deadline" in dying.reply().error(504, "timeout")
        assert one.users_of(0) == []

    def test_with_their_executor(self, one: GpuServer):
        dying = one.begin("hold_context", "never")

        def end() -> None:
            pid = self.process_of(one)
            while process(pid).name != "kcoral-executor":
                pid = process(pid).parent
            os.kill(pid, signal.SIGKILL)

        self.check(one, dying, end)
        dying.reply().error(500, "engine")
        assert one.users_of(0) == []


class TestTwoDevices:
    def test_programs_for_one_run_beside_each_other(self, two: GpuServer):
        pending = [two.hold() for _ in range(2)]
        assert {two.wait_for_holder(each) for each, _ in pending} == {0, 1}
        for _, word in pending:
            two.say(word)
        assert all(each.value() for each, _ in pending)
        two.wait_until_free()

    def test_programs_see_their_own_devices_only(self, two: GpuServer):
        shared = ["nvidia-uvm", "nvidiactl"]
        holder, word = two.hold()
        other = 1 - two.wait_for_holder(holder)
        node = f"nvidia{two.gpus.devices[other].minor}"
        assert two.begin("what_it_sees").value() == ["0", 1, sorted([*shared, node])]
        two.say(word)
        assert holder.value()
        pending = two.begin("what_it_sees", gpu_count=2)
        assert pending.value() == ["0,1", 2, sorted([*shared, "nvidia0", "nvidia3"])]
        document = pending.reply().json()
        assert (document["gpu_count"], document["gpu_ids"]) == (2, [0, 1])

    def test_a_program_for_both_waits_for_both_and_is_not_overtaken(self, two: GpuServer):
        holders = [two.hold() for _ in range(2)]
        at = [two.wait_for_holder(each) for each, _ in holders]
        word = str(uuid.uuid4())
        both = two.begin("hold", word, gpu_count=2)
        for device in (0, 1):
            two.wait_for_waiters(1, device)
        two.say(holders[0][1])
        assert holders[0][0].value()
        late = two.begin("spin", 0)
        wait_until(lambda: sum(gpu["waiters"] for gpu in two.look()) == 3, "it waits, too, for one of them")
        assert two.holders()[at[0]] is None, "kept for the one that needs both"
        two.say(holders[1][1])
        wait_until(lambda: two.holders() == [both.id, both.id], "it holds both")
        assert not late.is_answered
        two.say(word)
        began, ended = both.value()
        assert began >= holders[1][0].value()[1] and late.value()[0] >= ended

    def test_whatever_programs_do_devices_are_exclusive_and_come_back(self, two: GpuServer):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        chance = random.Random(seed)
        two.say("now")
        spans: dict[str, list[list[float]]] = defaultdict(list)
        pending = []
        for _ in range(60):
            options = {"gpu_count": chance.choice([1, 1, 1, 2]), "priority": chance.randint(-2, 2)}
            end = chance.choice(["return", "return", "context", "die", "deadline"])
            options["timeout_seconds"] = 0.1 if end == "deadline" else 30
            program = Program(options=options)
            module = program.module(two.source)
            program.give("nodes", program.call(module, "nodes", cpu_only=chance.random() < 0.5))
            for run in range(chance.randint(1, 3)):
                program.give(f"span-{run}", program.call(module, "spin", [0.002]))
            if end != "return":
                function, word = {"context": ("hold_context", "now"), "die": ("die", "now"), "deadline": ("hold", "")}[
                    end
                ]
                program.call(module, function, [word or "never"])
            pending.append((end, two.send(program)))
        for end, each in pending:
            reply = each.reply()
            if end == "deadline":
                reply.error(504, "timeout")
                continue
            result = reply.result()
            assert result.status == ("FAILED" if end == "die" else "COMPLETED"), result.error
            for node in result.values.pop("nodes"):
                spans[node] += result.values.values()
        two.wait_until_free()
        assert [gpu["health"] for gpu in two.look()] == ["ok", "ok"] and not two.users_of(0) and not two.users_of(3)
        for node in ("nvidia0", "nvidia3"):
            held = sorted(spans[node])
            assert held and not any(overlap(earlier, later) for earlier, later in zip(held, held[1:])), node

    def test_many_of_both_kinds(self, two: GpuServer):
        kinds = [1, 2, 1, 1, 2, 1, 2, 1]
        pending = [two.begin("spin", 0.005, gpu_count=count) for count in kinds]
        spans = [each.value() for each in pending]
        both = [span for span, count in zip(spans, kinds) if count == 2]
        for span in both:
            assert sum(overlap(span, other) for other in spans) == 1, "nobody else ran meanwhile"
