"""GET /metrics: the text that a Prometheus server reads, and figures that add up."""

from __future__ import annotations

import datetime
import math
import re
import threading
import uuid
from collections import Counter
from dataclasses import dataclass, field

import pytest

from fake_gpus import gpu_server
from harness import Program, Server, call, multipart, running_server, wait_until

NAMED_MAX = 20  # clients, besides "other"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')
VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN")
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    type: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """Version 0.0.4 of the text format, and nothing that it does not allow."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    current, helped = "", ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            helped, _, help_text = line.removeprefix("# HELP ").partition(" ")
            assert NAME.fullmatch(helped) and help_text and helped not in families, line
        elif line.startswith("# TYPE "):
            current, _, kind = line.removeprefix("# TYPE ").partition(" ")
            assert current == helped and current not in families, line
            assert kind in ("counter", "gauge", "histogram"), line
            families[current] = Family(kind)
        else:
            name, labels, value = parse_sample(line)
            family = families[current]
            suffixes = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
            assert name in [current + suffix for suffix in suffixes], line
            assert (name, labels) not in family.samples, line
            family.samples[name, labels] = value
    for name, family in families.items():
        check_family(name, family)
    return families


def parse_sample(line: str) -> tuple[str, Labels, float]:
    name = NAME.match(line)
    assert name, line
    rest = line[name.end() :]
    labels: list[tuple[str, str]] = []
    if rest.startswith("{"):
        while not rest.startswith("}"):
            label = LABEL.match(rest, 1)
            assert label, line
            labels.append((label[1], re.sub(r"\\.", lambda escape: UNESCAPED[escape[0]], label[2])))
            rest = rest[label.end() :]
            assert rest[0] in ",}", line
        rest = rest[1:]
    assert rest.startswith(" ") and VALUE.fullmatch(rest[1:]), line
    return name[0], tuple(labels), float(rest[1:])


def check_family(name: str, family: Family) -> None:
    assert family.samples, name
    assert (family.type == "counter") == name.endswith("_total")
    if family.type == "counter":
        assert all(value >= 0 for value in family.samples.values()), name
    if family.type == "histogram":
        counts = {float(dict(labels)["le"]): count for (sample, labels), count in family.samples.items() if labels}
        buckets = list(counts.items())
        assert buckets == sorted(buckets) and list(counts.values()) == sorted(counts.values()), name
        assert buckets[-1] == (math.inf, family.samples[name + "_count", ()])


class Metrics:
    def __init__(self, server: Server):
        reply = server.request("GET", "/metrics")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        self.families = parse(reply.body.decode())

    def value(self, name: str, **labels: str) -> float:
        """Of one sample, or of a histogram's _sum or _count."""
        family = re.sub("_(sum|count)$", "", name) if name not in self.families else name
        return self.families[family].samples[name, tuple(labels.items())]

    def since(self, before: "Metrics", name: str, **labels: str) -> float:
        return self.value(name, **labels) - before.value(name, **labels)

    def of(self, name: str) -> dict[str, float]:
        """All of a family with one label, by its value."""
        return {labels[0][1]: value for (_, labels), value in self.families[name].samples.items()}


@pytest.fixture(scope="module")
def server():
    with running_server("--num-workers", "2") as server:
        yield server


def hold(server: Server, **headers: str) -> threading.Thread:
    """A program that takes a worker until it is cancelled."""
    thread = threading.Thread(target=lambda: server.post(call("def main():\n    while True: pass\n"), **headers))
    thread.start()
    return thread


class TestFigures:
    def test_nothing_has_happened_yet(self):
        with running_server() as fresh:
            metrics = Metrics(fresh)
            assert sum(metrics.of("kcoral_requests_finished_total").values()) == 0
            assert metrics.of("kcoral_client_requests_finished_total") == {"other": 0}
            assert metrics.of("kcoral_executors")["idle"] == 1
            assert metrics.value("kcoral_queue_oldest_age_seconds") == 0
            health = fresh.health()
            started = datetime.datetime.fromisoformat(health["started_at"].replace("Z", "+00:00"))
            assert metrics.value("kcoral_start_time_seconds") == pytest.approx(started.timestamp(), abs=1e-3)
            assert metrics.value("kcoral_build_info", version=health["versions"]["kcoral"]) == 1
            assert not any("gpu" in name or "lease" in name for name in metrics.families)

    def test_programs_are_counted_as_they_end(self, server):
        before = Metrics(server)
        for _ in range(3):
            assert server.run("def main():\n    return 1\n").value() == 1
        assert server.run("def main():\n    raise ValueError\n").status == "FAILED"
        assert server.post(call("def main():\n    while True: pass\n", timeout_seconds=0.2)).status == 504
        after = Metrics(server)
        ended = Counter(after.of("kcoral_requests_finished_total"))
        ended.subtract(before.of("kcoral_requests_finished_total"))
        assert +ended == {"completed": 3, "failed": 1, "timed_out": 1}
        for name in ("kcoral_request_queue_seconds_count", "kcoral_request_run_seconds_count"):
            assert after.since(before, name) == 5, name
        assert after.since(before, "kcoral_request_run_seconds_sum") > 0.2
        assert after.since(before, "kcoral_requests_admitted_total", mode="execute") == 5
        assert after.since(before, "kcoral_commit_seconds_count") > 0
        assert after.value("kcoral_commit_operations_total") >= after.value("kcoral_commit_seconds_count")
        assert after.since(before, "kcoral_answers_kept_bytes") > 0

    def test_by_client_and_by_state_the_same_number_has_ended(self, server):
        server.execute(call("def main(): pass\n"), X_KCoral_Client="somebody")
        metrics = Metrics(server)
        clients = metrics.of("kcoral_client_requests_finished_total")
        assert clients["somebody"] == 1
        assert sum(clients.values()) == sum(metrics.of("kcoral_requests_finished_total").values())

    def test_what_runs_and_waits(self, server):
        ids = [str(uuid.uuid4()) for _ in range(3)]
        holders = [hold(server, X_Request_ID=each) for each in ids]
        wait_until(lambda: server.health()["load"]["requests_waiting"] == 1, "one waits for a worker")
        wait_until(lambda: Metrics(server).of("kcoral_executors")["running"] == 2, "both workers run something")
        metrics = Metrics(server)
        assert metrics.of("kcoral_requests") == {"queued": 1, "in_progress": 2}
        assert metrics.of("kcoral_executors")["idle"] == 0
        age = metrics.value("kcoral_queue_oldest_age_seconds")
        assert Metrics(server).value("kcoral_queue_oldest_age_seconds") > age > 0
        for each in ids:
            assert server.request("DELETE", f"/requests/{each}").status == 200
        for each in holders:
            each.join()
        wait_until(lambda: Metrics(server).of("kcoral_executors")["idle"] == 2, "both are idle again")
        metrics = Metrics(server)
        assert metrics.of("kcoral_requests") == {"queued": 0, "in_progress": 0}
        assert metrics.value("kcoral_queue_oldest_age_seconds") == 0
        assert metrics.of("kcoral_requests_finished_total")["cancelled"] == 3

    def test_blobs(self, server):
        content = b"x" * 5000
        program = Program()
        digest = program.blob(content)
        program.give("value", program.add("upload", id="b", kind="bytes", blob=digest))
        before = Metrics(server)
        assert server.execute(program).values["value"] == content
        assert b"CACHE_MISS" in server.post(program.document().replace(digest.encode(), b"0" * 64)).body
        after = Metrics(server)
        grown = {"kcoral_blobs_received_total": 1, "kcoral_blob_received_bytes_total": 5000, "kcoral_blob_cache_hits_total": 1,
                 "kcoral_blobs_missing_total": 1, "kcoral_blob_cache_bytes": 5000}  # fmt: skip
        assert {name: after.since(before, name) for name in grown} == grown

    def test_polled_programs(self, server):
        before = Metrics(server)
        content_type, body = multipart(call("def main(): pass\n").document(), [])
        assert server.request("POST", "/requests", body, {"Content-Type": content_type}).status == 202
        wait_until(lambda: Metrics(server).of("kcoral_requests")["in_progress"] == 0, "it has ended")
        assert Metrics(server).since(before, "kcoral_requests_admitted_total", mode="requests") == 1


class TestClients:
    """Names are theirs to choose."""

    @pytest.mark.parametrize("name", ['quote" 1', "back\\slash\\n", 'kcoral_up{x="1"} 7', "Zoë, tab\tand {}"])
    def test_a_name_can_contain_anything(self, server, name):
        server.execute(call("def main(): pass\n"), **{"X_KCoral_Client": name.encode()})
        assert Metrics(server).of("kcoral_client_requests_finished_total")[name] == 1

    def test_only_the_busiest_are_named(self):
        with running_server() as server:
            for _ in range(2):
                server.execute(call("def main(): pass\n"), X_KCoral_Client="busy")
            for number in range(NAMED_MAX + 5):
                server.execute(call("def main(): pass\n"), X_KCoral_Client=f"client-{number}")
            clients = Metrics(server).of("kcoral_client_requests_finished_total")
            assert len(clients) == NAMED_MAX + 1
            assert (clients["busy"], clients["other"]) == (2, 6)
            assert sum(clients.values()) == NAMED_MAX + 7


class TestHttp:
    def test_head_and_other_methods(self, server):
        head = server.request("HEAD", "/metrics")
        assert (head.status, head.body) == (200, b"") and head.headers["content-type"].startswith("text/plain; version=0.0.4")
        reply = server.request("POST", "/metrics", b"")
        assert reply.error(405, "method_not_allowed") and reply.headers["allow"] == "GET, HEAD"
        assert server.request("GET", "/metrics/").error(404, "not_found")


def test_leases():
    with gpu_server([0], "--workers-per-gpu", "2") as served:
        holder, word = served.hold()
        served.wait_for_holder(holder)
        waiting = served.begin("spin", 0)
        wait_until(lambda: Metrics(served.server).of("kcoral_gpu_lease_waiters")["0"] >= 1, "one waits for the GPU")
        metrics = Metrics(served.server)
        assert metrics.of("kcoral_gpu_lease_holders") == {"0": 1}
        assert metrics.of("kcoral_gpu_quarantined") == {"0": 0}
        served.say(word)
        assert holder.value() and waiting.value()
        wait_until(lambda: Metrics(served.server).value("kcoral_lease_held_seconds_count") >= 2, "both leases have ended")
        metrics = Metrics(served.server)
        assert metrics.of("kcoral_gpu_lease_handovers_total")["0"] >= 1
        assert metrics.of("kcoral_gpu_lease_idle_between_seconds_total")["0"] > 0
        assert metrics.value("kcoral_lease_wait_seconds_count") >= 2
