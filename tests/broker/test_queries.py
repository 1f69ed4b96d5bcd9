"""Listing and lookup over the web ports of two workers with half of the partitions each."""

import json
import signal
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.records import Publisher, Request
from tests.harness.scrape import get, scrape
from tests.harness.system import PARTITIONS, System
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from tests.harness.worker import Worker
from timers.cli.main import main
from timers.wire import future, topics
from timers.wire.formats import future_by_id
from timers.wire.signatures import ANY_WORKER, signed_headers

pytestmark = pytest.mark.broker

ID_TOPIC = "queried-by-id"
SECRET = "the workers and their operators share this text"


class Fleet:
    """Two workers of one app."""

    def __init__(self, address: str, directory: Path) -> None:
        self.system = System(
            address,
            directory,
            TIMERS_ID_TOPIC=ID_TOPIC,
            TIMERS_VERDICT_TOPIC="queried-verdict",
            TIMERS_QUERIES="values",
            TIMERS_QUERY_SECRET=SECRET,
            TIMERS_SESSION_TIMEOUT_S="120",  # a worker that is killed stays the owner while the test looks
        )
        self.system.create_own_topics()
        self.workers = [self.system.worker().start() for _ in range(2)]
        self.by_id = Publisher(address, ID_TOPIC)

    def wait_for_halves(self) -> None:
        wait_until(
            lambda: all(self.owned(worker) == 3 * PARTITIONS / 2 for worker in self.workers),
            "half for each",
            2 * DEADLINE_S,
        )

    def owned(self, worker: Worker) -> int:
        try:
            return int(json.loads(get(worker.port, "/health/ready")[1])["partitions"])
        except OSError:
            return 0

    def set(self, id: str, due_s: int, value: bytes | None, target: str = "orders") -> None:
        headers = [] if value is None else future_by_id.encode_headers(due_s)
        request = None if value is None else future.encode(target, f"key-{id}", value)
        self.by_id.producer.produce(ID_TOPIC, request, id.encode(), headers=[*headers])
        self.by_id.flush()

    def ask(self, worker: Worker, path: str, **parameters: Any) -> tuple[int, dict[str, Any]]:
        return self.ask_signed(worker, f"{path}?{urllib.parse.urlencode(parameters)}", SECRET)

    def ask_signed(self, worker: Worker, target: str, secret: str) -> tuple[int, dict[str, Any]]:
        headers = signed_headers(secret, target, ANY_WORKER, time.time())
        status, body = get(worker.port, target, headers)
        return status, json.loads(body)

    def find(self, worker: Worker, id: str) -> tuple[int, list[str]]:
        """Status, and the state of each timer of this id."""
        status, answer = self.ask(worker, "/timer", id=id)
        assert status == 200 or not answer["timers"]
        return status, [each["state"] for each in answer["timers"]]

    def wait_for(self, id: str, *states: str) -> None:
        wait_until(lambda: self.find(self.workers[0], id)[1] == list(states), f"{id} is {states}")

    def whole(self, worker: Worker, path: str, **parameters: Any) -> dict[str, Any]:
        """An answer in which nothing is missing: a machine that was too busy to answer in time is asked again."""

        def asked() -> dict[str, Any] | None:
            status, answer = self.ask(worker, path, **parameters)
            return answer if (status, answer.get("missing")) == (200, []) else None

        return wait_until(asked, f"a whole answer of {path}")

    def listed(self, worker: Worker, page: int = 1000, **parameters: Any) -> list[dict[str, Any]]:
        """All pages; each is whole."""
        timers: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            answer = self.whole(worker, "/timers", limit=page, **parameters, **cursor)
            assert len(answer["timers"]) <= page
            timers += answer["timers"]
            if answer["next"] is None:
                return timers
            cursor = {"cursor": answer["next"]}

    def counted(self, worker: Worker, **parameters: Any) -> Counter[int]:
        """The numbers of all pages; each is whole."""
        counts: Counter[int] = Counter()
        cursor: dict[str, str] = {}
        while True:
            answer = self.whole(worker, "/timers/counts", **parameters, **cursor)
            for each in answer["timers"]:
                counts[each["from"]] += each["timers"]
            if answer["next"] is None:
                return counts
            cursor = {"cursor": answer["next"]}


@pytest.fixture(scope="module")
def fleet(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(broker_address, tmp_path_factory.mktemp("fleet"))
    try:
        fleet.wait_for_halves()
        yield fleet
    finally:
        fleet.system.close()


def test_each_worker_lists_all_timers_in_due_order(fleet: Fleet) -> None:
    first_s = due_in(10_000)
    sent = fleet.system.send(
        *(
            Request("listed" if n % 3 else "other", first_s + n % 7, f"k{n}", bytes(n), partition=n % 4)
            for n in range(90)
        )
    )
    fleet.set("listed/ä", first_s + 3, b"v", "listed")
    ours = [each for each in sent if each.target == "listed"]
    wait_until(lambda: len(fleet.listed(fleet.workers[0], topic="listed")) == len(ours) + 1, "all are stored")
    whole = fleet.listed(fleet.workers[0], topic="listed")
    assert {each["id"] for each in whole} == {each.source for each in ours} | {"listed/ä"}
    order = [(each["due"], *(topics.parse_source(each["source"]) or ())) for each in whole]
    assert order == sorted(order) and len(set(order)) == len(order)
    for worker, page in zip(fleet.workers, (7, 30), strict=True):  # each page waits for the idle window of a second
        assert fleet.listed(worker, page, topic="listed") == whole, page
    second = {"from": first_s + 3, "to": first_s + 4}
    one_by_one = fleet.listed(fleet.workers[0], 1, topic="listed", **second)
    assert one_by_one == [each for each in whole if each["due"] == first_s + 3] and len(one_by_one) > 1
    by_source = {each.source: each for each in ours}
    for each in whole:
        if each["source"] in by_source:
            request = by_source[each["source"]]
            assert (each["due"], each["topic"], each["key"]) == (request.due_s, "listed", request.key)
            assert each["value_bytes"] == len(request.value or b"") and "value" not in each
    some = fleet.listed(fleet.workers[1], topic="listed", **{"from": first_s + 2, "to": first_s + 4, "value": 1})
    assert some and {each["due"] for each in some} == {first_s + 2, first_s + 3}
    assert next(each for each in some if each["id"] == "listed/ä")["value"] == "dg=="
    by_due = Counter(each["due"] for each in whole)
    for worker in fleet.workers:
        assert fleet.counted(worker, by=1, topic="listed") == by_due
        middle = {"from": first_s + 2, "to": first_s + 4}
        assert fleet.counted(worker, by=1, topic="listed", **middle) == Counter(each["due"] for each in some)
        assert fleet.counted(worker, by=86_400, topic="listed").total() == len(whole)
        one = fleet.counted(worker, by=1, topic="listed", partition=f"{ID_TOPIC}/0")
        assert one.total() <= 1
    for wrong in ({}, {"by": 0}, {"by": 86_401}, {"by": 1, "partition": "x"}, {"by": 1, "limit": 1}):
        assert fleet.ask(fleet.workers[0], "/timers/counts", **wrong)[0] == 400
    # Each worker asked the other one only for the partitions of that one.
    assert all(scrape(worker.port).total("timers_queries_total", query="forwarded") > 0 for worker in fleet.workers)


def test_a_timer_is_found_by_its_id_in_each_state(fleet: Fleet) -> None:
    later, target = due_in(5_000), fleet.system.target()
    for id in ("plain", "a/b/0", "../..", "ünï &?#=+% x", "x" * 512, f"{ID_TOPIC}/0/999999"):
        fleet.set(id, later, b"one")
        fleet.wait_for(id, "pending")
        assert fleet.find(fleet.workers[1], id) == (200, ["pending"])
    fleet.set("plain", later + 1, b"second")
    wait_until(lambda: fleet.ask(fleet.workers[0], "/timer", id="plain")[1]["timers"][0]["due"] == later + 1, "moved")
    status, answer = fleet.ask(fleet.workers[1], "/timer", id="plain", value=1)
    (plain,) = answer["timers"]
    assert (status, plain["topic"], plain["key"], plain["value"]) == (200, "orders", "key-plain", "c2Vjb25k")
    assert len([each for each in fleet.listed(fleet.workers[0], topic="orders") if each["id"] == "plain"]) == 1
    fleet.set("plain", later, None)
    fleet.wait_for("plain")
    assert fleet.find(fleet.workers[1], "plain") == (404, [])
    fleet.set("gone", due_in(1), b"now", target)
    fleet.wait_for("gone", "fired")
    assert fleet.find(fleet.workers[1], "gone") == (200, ["fired"])
    assert fleet.find(fleet.workers[0], "never") == (404, [])


def test_a_timer_without_an_id_is_found_by_its_request(fleet: Fleet) -> None:
    target = fleet.system.target()
    waits, fires = fleet.system.send(
        Request(target, due_in(5_000), partition=0), Request(target, due_in(1), partition=1)
    )
    for worker in fleet.workers:
        wait_until(lambda: fleet.find(worker, waits.source) == (200, ["pending"]), "it waits")  # noqa: B023
        wait_until(lambda: fleet.find(worker, fires.source) == (200, ["fired"]), "it has fired")  # noqa: B023
    publisher = fleet.system.publisher()
    publisher.send_raw(b"soon", b"", [], 2)
    letter = fleet.system.dead_letters().take(1)[0]
    assert fleet.find(fleet.workers[0], letter.text("timer-source")) == (200, ["rejected"])
    assert fleet.find(fleet.workers[0], f"{fleet.system.request_topic}/0/999999") == (404, [])
    assert fleet.find(fleet.workers[0], f"{fleet.system.request_topic}/77/0") == (404, [])
    # A retried timer is on the retry topic, with its original source.
    fleet.system.send(Request("nowhere-to-be-found", due_in(1), "k", partition=3))
    assert fleet.system.dead_letters().take(2)[1].text("timer-error") == "topic-unknown"


def test_a_wrong_query_is_answered_with_a_sentence(fleet: Fleet) -> None:
    worker = fleet.workers[0]
    for path, parameters, word in (
        ("/timers", {"limit": 0}, "limit=0 is not between 1 and 1000"),
        ("/timers", {"limit": 1001}, "limit=1001 is not between 1 and 1000"),
        ("/timers", {"limit": "x"}, "limit='x'"),
        ("/timers", {"from": "yesterday"}, "from='yesterday' is not an epoch second"),
        ("/timers", {"to": "-1"}, "to='-1'"),
        ("/timers", {"topic": "a b"}, "topic='a b' is not a legal topic name"),
        ("/timers", {"cursor": "1/2/3"}, "cursor='1/2/3'"),
        ("/timers", {"value": "yes"}, "value='yes' is not 0 or 1"),
        ("/timers", {"topics": "x"}, "'topics' is not a parameter"),
        ("/timer", {}, "id is missing"),
    ):
        status, answer = fleet.ask(worker, path, **parameters)
        assert status == 400 and word in answer["error"], answer


def test_a_query_must_be_signed(fleet: Fleet) -> None:
    for secret, reason in (("", "is not signed"), ("another " + SECRET, "with another secret")):
        status, answer = fleet.ask_signed(fleet.workers[0], "/timers?limit=1", secret)
        assert status == 403 and reason in answer["error"] and SECRET not in str(answer)
    assert fleet.ask_signed(fleet.workers[0], "/timers?limit=1", SECRET)[0] == 200


def test_timers_get_and_list(fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.system.use(monkeypatch)
    monkeypatch.setenv("TIMERS_WORKER_URL", f"http://127.0.0.1:{fleet.workers[1].port}")
    fleet.set("cli/1", due_in(7_200), b"v", "commands")
    fleet.set("cli/2", due_in(9_000), b"\0w", "commands")
    fleet.wait_for("cli/2", "pending")
    assert main(["get", "cli/1"]) == 0
    assert "cli/1: pending, due " in capsys.readouterr().out
    assert main(["get", "cli/2", "-o", "json", "--value"]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "AHc="
    assert main(["get", "cli/3"]) == 4
    assert "there is no timer of this id" in capsys.readouterr().err
    assert main(["get", "a\x1b[2J"]) == 4
    assert "\x1b" not in capsys.readouterr().err
    assert main(["list", "-t", "commands"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[3] for line in shown.out.splitlines()] == ["ID", "cli/1", "cli/2"]
    assert shown.err == "2 timers\n"
    assert main(["list", "-t", "commands", "--from", "1h", "--to", "140m", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "cli/1"
    assert main(["list", "-t", "commands", "-n", "1", "-o", "json"]) == 0
    assert "there are more" in capsys.readouterr().err
    assert main(["list", "--from", "yesterday"]) == 2
    assert main(["list", "--values"]) == 2
    monkeypatch.setenv("TIMERS_WORKER_URL", "http://127.0.0.1:9")
    assert main(["list"]) == 1
    assert "no worker answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_listing_names_a_worker_that_does_not_answer(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This test is the last of the module, because it kills a worker."""
    here, away = fleet.workers
    fleet.system.send(*(Request("partial", due_in(8_000), f"k{n}", partition=n) for n in range(PARTITIONS)))
    wait_until(lambda: len(fleet.listed(here, topic="partial")) == PARTITIONS, "all are stored")
    whole = fleet.listed(here, topic="partial")
    away.send(signal.SIGSTOP)  # it does not even refuse
    status, answer = fleet.ask(here, "/timers", topic="partial")
    assert status == 200
    assert f"worker {away.worker_id} does not answer" in answer["missing"][0]["reason"]
    away.send(signal.SIGCONT)
    away.kill()
    status, answer = fleet.ask(here, "/timers", topic="partial")
    assert status == 200 and 0 < len(answer["timers"]) < PARTITIONS
    missing = {each["partition"] for each in answer["missing"]}
    assert len(missing) == 3 * PARTITIONS / 2
    there = {each["source"].rsplit("/", 1)[0] for each in answer["timers"]}
    assert missing | there >= {f"{fleet.system.request_topic}/{partition}" for partition in range(PARTITIONS)}
    assert not missing & there
    for name, value in {**fleet.system.environment, "TIMERS_WORKER_URL": f"http://127.0.0.1:{here.port}"}.items():
        monkeypatch.setenv(name, value)
    assert main(["list", "-t", "partial", "-o", "json"]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == len(answer["timers"])
    assert "this is not all: no worker answers for" in shown.err and away.worker_id in shown.err
    assert main(["get", "never"]) == 1
    assert "no worker answers for" in capsys.readouterr().err
    # It starts again with another name, and gets its partitions without a rebalance.
    away.start(TIMERS_ADVERTISED_URL=f"http://localhost:{away.port}").ready()
    wait_until(lambda: fleet.ask(here, "/timers", topic="partial")[1]["timers"] == whole, "all are there again")
    away.stop()
    away.start(TIMERS_ADVERTISED_URL=f"http://127.0.0.1:{here.port}", TIMERS_QUERIES="timers").ready()
    wait_until(lambda: "set TIMERS_ADVERTISED_URL" in str(fleet.ask(here, "/timers")[1]["missing"]), "it is said")
    assert fleet.ask(away, "/timers", value=1)[0] == 403
    away.stop()
    away.start(TIMERS_QUERIES="off").ready()
    assert fleet.ask(away, "/timers")[0] == fleet.ask(away, "/timer", id="x")[0] == 403
    wait_until(lambda: "TIMERS_QUERIES=off" in str(fleet.ask(here, "/timers")[1]["missing"]), "it is said")
