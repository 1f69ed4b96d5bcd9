"""The worker's pages about timers: which questions wait for which, how many wait, and when machines are read."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from tests.harness.sim_admin import answered
from timers.core.listing import LIST_START
from timers.core.machine import Machine
from timers.core.progress import Progress
from timers.kafka.aiokafka_internals.group import Member
from timers.kafka.request_formats import NATIVE
from timers.machines.queries.answers import Answer, LocalSource, Lookup, RemoteSource
from timers.machines.queries.pages import MAX_CONCURRENT, MAX_WAITING, QueryPages
from timers.machines.queries.reading import START as WINDOW_START
from timers.machines.queries.reading import Place, Turns
from timers.machines.store.memory import MemoryStore
from timers.process.config.settings import Settings
from timers.wire import query as wire
from timers.wire.headers import id_shown
from timers.wire.query import Query
from timers.wire.signatures import ANY_WORKER, signed_headers

SETTINGS = Settings.load({})
WAITING: Any = Machine.waiting
NEXT = "1896091200/t/0/7"


def body_of(reply: web.Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.text or "")
    return found


class SimQueries:
    """Answers when ``go`` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running: Counter[str] = Counter()
        self.ids: list[str] = []

    async def _answer(self, kind: str) -> Answer:
        self.running[kind] += 1
        await self.go.wait()
        return Answer([], None, [], {})

    async def page(self, query: Query, arrived: float, *, forwarded: bool) -> Answer:
        return await self._answer(f"{'forwarded ' if forwarded else ''}{'quick' if query.is_quick else 'long'}")

    async def count(self, query: Query, arrived: float, *, forwarded: bool) -> Answer:
        return await self._answer(f"{'forwarded ' if forwarded else ''}{'quick' if query.is_quick else 'long'}")

    async def find(self, id: str, with_value: bool, *, forwarded: bool) -> Answer:
        self.ids.append(id)
        return await self._answer("look-up")

    async def take(self, *, forwarded: bool) -> Answer:
        return await self._answer("forwarded take" if forwarded else "take")


class Pages:
    """Handlers of the pages, over the queries above."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.queries = SimQueries()
        pages = QueryPages(lambda: settings, lambda: 0.0)
        pages.queries = self.queries  # type: ignore[assignment]
        self._handlers: dict[str, Callable[..., Any]] = {}
        pages.register(lambda path: lambda handler: self._handlers.setdefault(path, handler))

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, /, *, forwarded: str = "", **query: str
    ) -> asyncio.Task[web.Response]:
        forwarding = {wire.FORWARDED: forwarded} if forwarded else {}
        sent = CIMultiDict({"Host": "127.0.0.1:6066", **forwarding, **(headers or {})})
        raw_path = f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path
        request = SimpleNamespace(headers=sent, raw_path=raw_path)
        return asyncio.create_task(self._handlers[path](None, request))


NAMED = {"TIMERS_ADVERTISED_URL": "http://worker.example:6066", "TIMERS_WEB_HOSTS": "build-7,Timers.local"}


@pytest.mark.parametrize("path", [wire.LIST_PATH, wire.COUNT_PATH, wire.FIND_PATH, wire.SNAPSHOT_PATH])
@pytest.mark.parametrize(
    ("headers", "answered"),
    [
        ({"Host": "evil.example"}, False),
        ({"Host": "evil.example:6066", "Sec-Fetch-Site": "same-origin"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "evil.example", wire.FORWARDED: "1"}, False),
        ({"Host": ""}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Host": "localhost:6066", "Sec-Fetch-Site": "none"}, True),
        ({"Host": "[::1]:6066"}, True),
        ({"Host": "10.0.0.7:1"}, True),
        ({"Host": "worker.example:6066"}, True),
        ({"Host": "BUILD-7"}, True),
        ({"Host": "timers.local:80"}, True),
    ],
)
async def test_a_web_page_under_another_name_gets_nothing(path: str, headers: dict[str, str], answered: bool) -> None:
    pages = Pages(Settings.load(NAMED))
    pages.queries.go.set()
    query = {wire.COUNT_PATH: {"by": "60"}, wire.FIND_PATH: {"id": "a"}}.get(path, {})
    reply = await pages.ask(path, headers, **query)
    assert (reply.status != 403) is answered, reply
    assert ("error" in body_of(reply)) is not answered


async def test_a_worker_with_a_secret_checks_the_signature_and_not_the_host() -> None:
    secret = "s" * 32
    pages = Pages(Settings.load({"TIMERS_QUERY_SECRET": secret}))
    pages.queries.go.set()
    signed = signed_headers(secret, wire.LIST_PATH, ANY_WORKER, 0.0)
    assert (await pages.ask(wire.LIST_PATH, {"Host": "evil.example", **signed})).status == 200
    assert (await pages.ask(wire.LIST_PATH, {"Host": "localhost"})).status == 403


async def test_more_questions_than_may_wait_are_refused_at_once() -> None:
    pages = Pages()
    asked = [pages.ask(wire.LIST_PATH) for _ in range(MAX_CONCURRENT + MAX_WAITING + 2)]
    await asyncio.sleep(0.01)
    refused = [task.result() for task in asked if task.done()]
    assert [(each.status, each.headers["Retry-After"]) for each in refused] == [(429, "1")] * 2
    assert "try again" in body_of(refused[0])["error"]
    assert pages.queries.running == {"quick": MAX_CONCURRENT}
    pages.queries.go.set()
    answers = await asyncio.gather(*asked)
    assert Counter(each.status for each in answers) == {200: MAX_CONCURRENT + MAX_WAITING, 429: 2}


async def test_first_pages_and_look_ups_do_not_wait_for_long_pages() -> None:
    pages = Pages()
    long = [pages.ask(wire.LIST_PATH, cursor=NEXT) for _ in range(MAX_CONCURRENT)]
    long += [pages.ask(wire.LIST_PATH, forwarded="1", cursor=NEXT) for _ in range(MAX_CONCURRENT)]
    quick = [pages.ask(wire.LIST_PATH), pages.ask(wire.FIND_PATH, id="a"), pages.ask(wire.COUNT_PATH, by="60")]
    quick += [pages.ask(wire.LIST_PATH, forwarded="1")]
    await asyncio.sleep(0.01)
    assert pages.queries.running == {
        "long": MAX_CONCURRENT,
        "forwarded long": MAX_CONCURRENT,
        "quick": 2,
        "look-up": 1,
        "forwarded quick": 1,
    }
    pages.queries.go.set()
    assert {each.status for each in await asyncio.gather(*long, *quick)} == {200, 404}


class Owner:
    """A worker's HTTP port, over the pages above: it answers the questions of another worker."""

    def __init__(self) -> None:
        self.pages = Pages()
        self.pages.queries.go.set()
        app = web.Application()
        for path in (wire.LIST_PATH, wire.COUNT_PATH, wire.FIND_PATH, wire.SNAPSHOT_PATH):
            app.router.add_get(path, self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.Response:
        query = dict(wire.given_in(request.raw_path))
        return await self.pages.ask(request.path, forwarded=request.headers[wire.FORWARDED], **query)


@pytest.mark.parametrize(("limit", "kind"), [(100, "quick"), (1000, "long")])
async def test_a_first_page_stays_quick_on_the_worker_that_it_is_forwarded_to(limit: int, kind: str) -> None:
    """Also where it goes on at a place: a later read of the page, or the next partition of counts."""
    owner = Owner()
    async with owner.server, ClientSession() as session:
        member = Member("w2", str(owner.server.make_url("")).rstrip("/"))
        remote = RemoteSource(session, lambda _: {}, member, {("requests", 0)})
        await remote.page(Query(limit=limit), (5, "requests", 0, 7), 10)
        assert owner.pages.queries.running == {f"forwarded {kind}": 1}
        if kind == "quick":
            await remote.count(Query(by_s=60), ("requests", 0), (5, 7))
            assert owner.pages.queries.running == {"forwarded quick": 2}
        await remote.count(Query(by_s=60, after=(1, "requests", 0, 0)), ("requests", 0), (5, 7))
        assert owner.pages.queries.running["forwarded long"] == (1 if kind == "quick" else 2)


async def test_the_bytes_of_an_id_stay_as_they_are_and_snapshots_are_wanted_on_the_way_to_another_worker() -> None:
    """A library would put U+FFFD in the place of bytes that are not UTF-8, which is another id."""
    id = "a\udcff+/ä%ff&b"
    owner = Owner()
    async with owner.server, ClientSession() as session:
        member = Member("w2", str(owner.server.make_url("")).rstrip("/"))
        remote = RemoteSource(session, lambda _: {}, member, {("requests", 0)})
        assert await remote.find(Lookup(id, None, with_value=False)) == []
        assert await remote.take(None) == []
    assert owner.pages.queries.running["forwarded take"] == 1
    assert owner.pages.queries.ids == [id]
    found = await owner.pages.ask(wire.FIND_PATH, id=id)
    assert body_of(found)["id"] == id_shown(id.encode(errors="surrogateescape"))
    assert (await owner.pages.ask(wire.LIST_PATH, prefix="\udcff")).status == 400


class SimRunner:
    """Asks a machine with one timer."""

    def __init__(self) -> None:
        store = MemoryStore()
        store.write({9: [(0, "t", "k", b"", None, None)]}, 1)
        self._machine: Any = SimpleNamespace(_store=store, _index=None, recovering=False, progress=Progress())
        self._machine.waiting = lambda *arguments: WAITING(self._machine, *arguments)

    def ask(self, question: Callable[[Any], Any]) -> Future[Any]:
        return answered(question(self._machine))


@pytest.mark.parametrize(
    ("query", "waits"),
    [
        (Query(), False),
        (Query(from_s=5, topic="t"), False),
        (Query(limit=1000), True),
        (Query(after=(1, "t", 0, 0)), True),
    ],
)
async def test_only_short_first_pages_are_read_before_the_idle_window(query: Query, waits: bool) -> None:
    now_s = 0.0

    class SimTurns(Turns):
        async def wait(self, *, quick: bool) -> None:
            nonlocal now_s
            now_s += self.wait_s(quick=quick)

    source = LocalSource(
        SimRunner(),
        Place("requests", 0, moved=False),
        NATIVE,
        request_reader=None,  # type: ignore[arg-type]
        turns=SimTurns(lambda: now_s),
    )
    page = await source.page(query, LIST_START, 10)
    assert [each.timer["due"] for each in page.listed] == [9]
    assert now_s == (WINDOW_START if waits else 0.0)
