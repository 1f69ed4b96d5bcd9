"""A console over a cluster in memory, and a client that sends it requests."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from timers.client import tracing
from timers.client.request import Encoder, TimerRequest, id_key, sent_headers
from timers.console.changes import Changes, change_of
from timers.console.history import History
from timers.console.kafka_cluster import (
    ANSWER_S,
    FoundGroup,
    FoundWorker,
    KafkaCluster,
    WorkerAnswer,
)
from timers.console.letter_box import FoundLetters, Ranges, RetryResult
from timers.console.problems import Problem
from timers.console.queue_list import FoundQueues
from timers.console.topics_follower import TopicsFollower
from timers.console.web.server import LINE_LIMITS, Server
from timers.core.levels import HOLDS_LEVEL
from timers.core.operation import ABSENT, CANCELLED, CHANGED, EXISTS, REPLACED, SET, TOO_LATE, UNKNOWN
from timers.core.printable import json_value, utc_text
from timers.core.progress import Progress
from timers.errors import QueryError, QueueError, TimersError
from timers.kafka.aiokafka_internals.open_transactions import Looked
from timers.offline.app_state import AppState, LevelsInUse
from timers.offline.dead_letters.letters import Letter, LetterFilter, LetterPage, QueueTopics
from timers.offline.fired import CallbackRecord, PastFirings
from timers.offline.targets import Found, Given, Make
from timers.process.config.settings import Settings
from timers.queue.inspection import QueueStats
from timers.wire import query as wire
from timers.wire.headers import Header
from timers.wire.targets import Target, Targets
from timers.wire.verdict import VerdictMessage

TOPIC = "sim-requests"


def shown_key(key: Any) -> Any:
    """A callback key as a worker shows it."""
    return json_value(key) if isinstance(key, bytes) else key


class SimFollower(TopicsFollower):
    """Gives what a test puts into ``queue``: records, and how many were dropped before."""

    def __init__(self, positions: Sequence[Sequence[int]] | None) -> None:
        self.positions = [list(each) for each in positions or [[0, 0]]]
        self.queue: asyncio.Queue[tuple[list[CallbackRecord], int]] = asyncio.Queue()
        self.closed = False
        self.failure: TimersError | None = None

    async def next(self, timeout_s: float) -> tuple[list[CallbackRecord], int]:
        if self.failure is not None:
            raise self.failure
        try:
            return await asyncio.wait_for(self.queue.get(), timeout_s)
        except TimeoutError:
            return [], 0

    async def close(self) -> None:
        self.closed = True


def _due_s(request: TimerRequest | None) -> int | None:
    return None if request is None else request.first_due(int(time.time()))


class SimCluster(KafkaCluster):
    """The cluster of a console, in memory.

    Attributes:
        timers: id or source -> timer.
        sources: id -> source of its latest record.
        request_hashes: source -> header of the request.
        version_targets: of former versions: source -> callback topic.
        fired: due seconds that have fired.
        recorded: the log of changes.
        older_changes: where what is not shown of it ends.
        failure: what all writes raise.
        worker_fails: whether no worker answers.
        worker_is_foreign: whether the worker that answers is one of another cluster.
        answer: what a worker answers instead.
        counted_at_once: so many timers are in one page of numbers.
        questions: asked of the worker.
        known_targets: records of the topic of targets.
        app_state: what the brokers say of levels, topics and open transactions.
        progress: of the only machine, which takes commands about targets.
        now_s: epoch second in which commands are given.
    """

    def __init__(self) -> None:
        self.client: Any = self
        self.timers: dict[str, TimerRequest] = {}
        self.counted_at_once = 100
        self.recorded: list[dict[str, Any]] = []
        self.older_changes: list[int] | None = None
        self.failure: TimersError | None = None
        self.log_failure: TimersError | None = None
        self.worker_fails = self.brokers_fail = False
        self.taken = ""
        self.worker_is_foreign = False
        self.answer: WorkerAnswer | None = None
        self.questions: list[tuple[str, dict[str, str]]] = []
        self.pages: dict[str, tuple[int, bytes]] = {}
        self.dead_letters: list[Letter] = []
        self.unsure: set[str] = set()
        self.missing: dict[str, str] = {}
        self.retry_step = 1000
        self.written_s: dict[str, int] = {}
        self.sources: dict[str, str] = {}
        self.request_hashes: dict[str, bytes] = {}
        self.version_targets: dict[str, str] = {}
        self.fired: set[int | None] = set()
        self.retried: list[str] = []
        self.queue_stats: dict[str, QueueStats] = {}
        self.queues_missing: dict[str, str] = {}
        self.past = PastFirings([], {})
        self.known_targets: dict[str, Target] = {}
        self.progress = Progress.first(HOLDS_LEVEL)
        self.now_s = 1_900_000_000
        self.topic_names: set[str] = set()
        self.follower = SimFollower(None)
        self.app_state = AppState(LevelsInUse(11, {"w1": 11}, {"t/0": 11}), [], Looked([], []), {})
        self._places: dict[str, int] = {}
        self.headers: dict[str, list[Header]] = {}
        """Id -> headers of the last request."""
        self._encode = Encoder(1_000_000, context=tracing.current)

    def _write(self, request: TimerRequest) -> str:
        assert self.recorded, "a change is recorded before it is made"
        if self.failure is not None:
            raise self.failure
        id = request.id or f"{TOPIC}/0/{len(self.timers)}"
        self.headers[id] = self._encode(request)[2] or []
        self.timers[id] = request
        self.sources[id] = f"{TOPIC}/0/{len(self.recorded)}" if request.id else id
        return id

    async def schedule_request(self, request: TimerRequest) -> str:
        return self._write(request)

    async def update_if(
        self,
        request: TimerRequest,
        condition: str | None,
        *,
        request_hash: bytes | None = None,
        timeout_s: float | None = None,
    ) -> VerdictMessage:
        id = request.id or ""
        if self.failure is None and (refused := self._refused(id, condition)):
            return refused
        before = self.timers.get(id)
        self._write(request)
        if request_hash is not None:
            self.request_hashes[self.sources[id]] = request_hash
        new = UNKNOWN if condition is None else SET
        return VerdictMessage(id, REPLACED if before else new, _due_s(before), self.sources[id])  # type: ignore[arg-type]

    async def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        assert self.recorded, "a change is recorded before it is made"
        id_key(id)
        if self.failure is not None:
            raise self.failure
        if refused := self._refused(id, if_source):
            return refused
        timer = self.timers.pop(id, None)
        if timer is not None:
            self.sources[id] = f"{TOPIC}/0/{len(self.recorded)}"
        return VerdictMessage(id, CANCELLED if timer else UNKNOWN, _due_s(timer))

    async def request_hash(self, source: str) -> bytes | None:
        return self.request_hashes.get(source)

    def _refused(self, id: str, condition: str | None) -> VerdictMessage | None:
        """The verdict on a condition that is not true. A cancelled id has a source, and no timer."""
        timer = self.timers.get(id)
        source = self.sources.get(id, f"{TOPIC}/0/1" if timer else None)
        due_s = _due_s(timer)
        if due_s in self.fired and condition == source:
            return VerdictMessage(id, TOO_LATE, due_s, source)
        if condition is None or condition == (source or ABSENT):
            return None
        return VerdictMessage(id, EXISTS if condition == ABSENT else CHANGED, due_s, source)

    async def ask(self, path: str, parameters: Mapping[str, str]) -> WorkerAnswer:
        self.questions.append((path, dict(parameters)))
        if self.worker_fails:
            raise QueryError("no worker answers")
        if self.answer is not None:
            return self.answer
        if path == wire.FIND_PATH:
            id = parameters["id"]
            found = [self._shown(id)] if id in self.timers else []
            if found and parameters.get("value") == "1":
                value, headers = self.timers[id].value, sent_headers(self.timers[id].headers)
                row: Any = (0, "", "", value if isinstance(value, bytes) else str(value).encode(), headers, None)
                described = wire.describe(row, 0, TOPIC, 0, moved=False, with_value=True)
                found[0] |= {name: described[name] for name in ("value", "headers")}
            return WorkerAnswer(200 if found else 404, {"id": id, "timers": found, "missing": []})
        if path == wire.COUNT_PATH:
            return self._counted(wire.parse_count_query(parameters))
        query = wire.parse_query(parameters)
        listed = [self._shown(id) for id in sorted(self.timers) if query.topic in (None, self.timers[id].topic)]
        listed = [timer for timer in listed if timer["id"].startswith(query.prefix)]
        listed = [timer for timer in listed if query.contains in f"{timer['id']}\n{timer['key']}"]
        for timer in listed:
            self._places.setdefault(timer["id"], len(self._places))
        rest = [timer for timer in listed if self._places[timer["id"]] > query.after[3]]
        page = rest[: query.limit]
        following = f"1/{TOPIC}/0/{self._places[page[-1]['id']]}" if len(rest) > len(page) else None
        return WorkerAnswer(200, {"timers": page, "missing": [], "next": following})

    def _counted(self, query: wire.Query) -> WorkerAnswer:
        """The numbers of some timers."""
        timers = [timer for _, timer in sorted(self.timers.items()) if query.topic in (None, timer.topic)]
        start, end = max(0, query.after[3]), max(0, query.after[3]) + self.counted_at_once
        dues = [((_due_s(timer) or 0) // query.by_s * query.by_s, timer.topic) for timer in timers[start:end]]
        counts = [{"from": due_s, "topic": topic, "timers": count} for (due_s, topic), count in Counter(dues).items()]
        following = f"1/{TOPIC}/0/{end}" if end < len(timers) else None
        return WorkerAnswer(200, {"timers": counts, "missing": [], "next": following})

    def _shown(self, id: str) -> dict[str, Any]:
        timer = self.timers[id]
        due_s = _due_s(timer) or 0
        shown = {"id": id, "state": "pending", "due": due_s, "due_at": utc_text(due_s), "topic": timer.topic}
        holds = self.progress.holds.by_target.get(timer.topic, ()) if due_s <= self.now_s else ()
        held = [{"reason": hold.reason, "number": hold.number, "since": hold.since_s} for hold in holds]
        return {
            **shown,
            **({"held": held[0]} if held else {}),
            **({"repeat": timer.repeat.to_header().decode()} if timer.repeat else {}),
            "key": shown_key(timer.key),
            "value_bytes": len(timer.value),
            "source": self.sources.get(id, f"{TOPIC}/0/1" if timer.id else id),
        }

    async def group(self) -> FoundGroup:
        workers = [
            FoundWorker("w1", "http://127.0.0.1:1", [("t", 0), ("t", 1)], True),
            FoundWorker("w2", "http://evil:1", [("t", 2)], False),
        ]
        return FoundGroup(workers, self.taken)

    async def worker_page(self, url: str, path: str, timeout_s: float = ANSWER_S, **query: str) -> tuple[int, bytes]:
        assert url == "http://127.0.0.1:1", "only trusted addresses are asked"
        if self.worker_fails:
            raise QueryError("no worker answers")
        return self.pages.get(path, (404, b"{}"))

    async def check_worker(self, url: str, timeout_s: float = ANSWER_S) -> None:
        if self.worker_is_foreign:
            raise QueryError(f"the worker at {url} is of another cluster")

    async def letters(self, letter_filter: LetterFilter, limit: int, ends: Mapping[int, int] | None) -> FoundLetters:
        end = len(self.dead_letters) if ends is None else ends[0]
        found = [letter for letter in reversed(self.dead_letters[:end]) if letter in letter_filter]
        page, rest = found[:limit], found[limit:]
        ends = {0: rest[0].offset + 1} if rest else {}
        return FoundLetters(LetterPage(page, ends), {}, frozenset(self.unsure), self.missing)

    async def retry(self, letter_filter: LetterFilter, ranges: Ranges | None, *, only_look: bool) -> RetryResult:
        start, end = (0, len(self.dead_letters)) if ranges is None else ranges[0]
        stop = end if only_look or letter_filter.names else min(end, start + self.retry_step)
        read = self.dead_letters[start:stop]
        matching = [letter.position for letter in read if letter in letter_filter]
        self.retried += [] if only_look else matching
        rest = {0: (start if only_look else stop, end)}
        return RetryResult(len(matching), 0, {}, 0 if only_look else len(matching), stop < end, [], self.missing, rest)

    async def history(self, id: str, timer: dict[str, Any] | None) -> History:
        if timer is None:
            cancelled = [{"at_ms": 1, "what": "cancelled", "source": self.sources[id]}] if id in self.sources else []
            return History(cancelled, [], self.version_targets)
        events = [{"at_ms": 1, "what": "set", "source": each} for each in (*self.version_targets, timer["source"])]
        targets = {**self.version_targets, timer["source"]: timer["topic"]}
        return History(events, [{"topic": "t", "reason": "no ACL"}], targets)

    async def stored_request(self, id: str, source: str, topic: str | None) -> TimerRequest | None:
        timer = self.timers.get(id)
        return timer if timer is not None and self._shown(id)["source"] == source else None

    async def times(self, sources: Sequence[str]) -> dict[str, int]:
        return {source: self.written_s[source] for source in sources if source in self.written_s}

    async def past_firings(self, since_s: int, may_see: Callable[[str], bool]) -> PastFirings:
        if self.failure is not None:
            raise self.failure
        records = [each for each in self.past.records if each.timestamp_ms >= since_s * 1000 and may_see(each.topic)]
        return self.past._replace(records=records)

    async def topics(self, may_see: Callable[[str], bool]) -> list[str]:
        if self.failure is not None:
            raise self.failure
        return sorted(filter(may_see, self.topic_names))

    async def targets(self) -> Found:
        progress = {(TOPIC, 0): self.progress}
        return Found(Targets(self.known_targets, {}), progress, (), HOLDS_LEVEL)

    async def command(self, make: Make) -> Given:
        """The only machine takes each command at once."""
        assert self.recorded, "a change is recorded before it is made"
        if self.failure is not None:
            raise self.failure
        found = make(await self.targets(), self.topic_names, self.now_s)
        command = found.target.command
        self.known_targets[command.target] = found.target
        self.progress = self.progress.with_commands([command], self.now_s, lambda hold: 0, is_drained=True)
        return found

    async def create_topic(self, topic: str) -> bool:
        assert self.recorded, "a change is recorded before it is made"
        if self.failure is not None:
            raise self.failure
        is_new = topic not in self.topic_names
        self.topic_names.add(topic)
        return is_new

    async def state(self, may_see: Callable[[str], bool], now_s: float) -> AppState:
        if self.failure is not None:
            raise Problem("busy", str(self.failure))  # no other failure reaches the page
        state = self.app_state
        if state.transactions is None:
            return state
        seen = [each for each in state.transactions.transactions if may_see(each.topic)]
        return state._replace(transactions=state.transactions._replace(transactions=seen))

    async def changes(self, id: str, user: str, ends: Sequence[int] | None) -> Changes:
        entries = [json.dumps(each).encode() for each in reversed(self.recorded[: ends[0] if ends else None])]
        found = [each for entry in entries if (each := change_of(entry, id, user)) is not None]
        return Changes(found, len(entries), self.older_changes)

    async def queues(self) -> FoundQueues:
        return FoundQueues(list(self.queue_stats.values()), dict(self.queues_missing))

    async def queue(self, name: str, topic: str | None) -> QueueStats:
        if name not in self.queue_stats:
            raise QueueError(f"there is no queue {name!r}")
        return self.queue_stats[name]

    async def queue_topics(self, name: str) -> QueueTopics:
        return QueueTopics((await self.queue(name, None)).topic, f"queue.{name}-returns")

    async def follow(self, topics: Sequence[str], positions: Sequence[Sequence[int]] | None) -> SimFollower:
        if self.failure is not None:
            raise self.failure
        self.follower = SimFollower(positions)
        return self.follower

    async def record(self, entry: bytes) -> None:
        if self.log_failure is not None:
            raise self.log_failure
        self.recorded.append(json.loads(entry))

    async def problems(self) -> tuple[list[str], list[str]]:
        brokers = ["no broker answers"] if self.brokers_fail else []
        return brokers, ["no worker answers"] if self.worker_fails else []


class ServedAsByCommand(TestServer):
    """aiohttp's server for tests, which would cancel a handler whose client has gone, and has other limits."""

    async def _make_runner(self, **options: Any) -> Any:
        return await super()._make_runner(**{**options, "handler_cancellation": False, **LINE_LIMITS})


@asynccontextmanager
async def console(cluster: SimCluster, **environment: str) -> AsyncIterator[TestClient[Any, Any]]:
    """A client of a console that writes, unless the settings say otherwise."""
    settings = Settings.load({"TIMERS_BROKERS": "nowhere:1", "TIMERS_CONSOLE_WRITE": "1", **environment})
    async with TestClient(ServedAsByCommand(Server(settings, cluster).application())) as client:
        yield client


async def answer_of(client: TestClient[Any, Any], method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    async with client.request(method, path, **more) as response:
        return response.status, await response.json(content_type=None)
