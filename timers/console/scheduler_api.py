"""The paths of kafka-message-scheduler and of its admin: its interface and its clients can read schedules here.

Names, parameters, JSON and order are those of its source (``apiserver/rest``, and ``server/restapi`` of the admin).
They are on with ``TIMERS_CONSOLE_SCHEDULER_API=1``. The one scheduler has the app id as its name. What is different is
in ``docs/coming-from-kafka-message-scheduler.md``.
"""

from __future__ import annotations

import fnmatch
import re
import socket
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, NamedTuple

from timers.console.call import Call, Handler, Reply
from timers.console.kafka_cluster import WorkerAnswer
from timers.console.problems import Problem
from timers.console.routes import PUBLIC, READER, Route
from timers.console.timer_pages import ask
from timers.core.printable import quoted
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.checks import MAX_DUE_S
from timers.wire.query import Timer, callback_key_bytes

DEFAULT_MAX, MAX_FOUND = 300, 1000
"""The admin's own limits of a search."""

MAX_SCHEDULES = 5000
MAX_VALUES_BYTES = 16 * 1024 * 1024
MAX_READING_S = 5.0
"""A search ends after this number of schedules, this size of their values, or this time, with those found so far."""

MAX_TERMS = 20
"""Words of a search. Each is compared with each id; those after them are ignored."""

_SORTED_BY = ("timestamp", "id", "epoch")


ROUTES: list[tuple[Route, Handler]] = []


def _path(path: str, role: str = READER) -> Callable[[Handler], Handler]:
    """Make the function that follows the handler of a path of the scheduler or of its admin."""

    def enter(handler: Handler) -> Handler:
        ROUTES.append((Route(path, f"scheduler:{path}", role=role, is_foreign=True), handler))
        return handler

    return enter


# ---- the scheduler --------------------------------------------------------------------------------------------------


@_path("/liveness", PUBLIC)
async def liveness(call: Call) -> Reply:
    return Reply(b"")


@_path("/info")
async def info(call: Call) -> Reply:
    settings = call.console.settings
    kafka = {"bootstrap_servers": settings.brokers, "topics": list(settings.schedule_topics), "history_topic": ""}
    address = f"{settings.console_bind}:{settings.console_port}"
    return Reply({"hostname": socket.gethostname(), "address": [], "server_address": address, "kafka": kafka})


@_path("/schedules")
async def schedules(call: Call) -> Reply:
    """Those that wait."""
    found, _ = await _listed(call)
    return Reply(await _read(call, found))


# ---- its admin ------------------------------------------------------------------------------------------------------


@_path("/api/stats")
async def stats(call: Call) -> Reply:
    timers, _ = await _listed(call)
    found = len(timers)
    name = call.console.settings.app_id
    return Reply([{"scheduler": name, "total_live": found, "total_history": 0, "total": found}])


@_path("/api/schedulers")
async def schedulers(call: Call) -> Reply:
    settings = call.console.settings
    instance = {
        "ip": "127.0.0.1",
        "hostname": [socket.gethostname()],
        "topics": list(settings.schedule_topics),
        "history_topic": "",
        "bootstrap_servers": settings.brokers,
    }
    return Reply([{"name": settings.app_id, "http_port": str(settings.console_port), "instances": [instance]}])


@_path("/api/scheduler/{name}/schedules")
@_path("/api/live/scheduler/{name}/schedules")
async def search(call: Call) -> Reply:
    wanted = Search.of(call.request.query)
    timers = (await _listed(call, wanted.range, wanted.matches))[0] if _is_ours(call) else []
    found = await _read(call, timers)
    # For equal values: by id, or the newest first.
    if wanted.sorted_by == "id":
        found.sort(key=lambda each: each["timestamp"], reverse=True)
    else:
        found.sort(key=lambda each: each["id"])
    found.sort(key=lambda each: each[wanted.sorted_by], reverse=wanted.is_descending)
    shown = [_with_scheduler(call, schedule) for schedule in found[: wanted.most]]
    return Reply({"found": len(found), "schedules": shown})


@_path("/api/scheduler/{name}/schedule/{id:.+}")
@_path("/api/live/scheduler/{name}/schedule/{id:.+}")
async def get(call: Call) -> Reply:
    id = call.request.match_info["id"]
    found = await _read(call, await _with_id(call, id)) if _is_ours(call) else []
    return Reply([_with_scheduler(call, schedule) for schedule in found]) if found else Reply(b"", 404)


@_path("/api/history/scheduler/{name}/schedules")
async def no_history(call: Call) -> Reply:
    """There is no history topic."""
    return Reply({"found": 0, "schedules": []})


@_path("/api/history/scheduler/{name}/schedule/{id:.+}")
async def not_there(call: Call) -> Reply:
    """404 without a body, as the admin has it."""
    return Reply(b"", 404)


def _is_ours(call: Call) -> bool:
    return call.request.match_info["name"] == call.console.settings.app_id


def _with_scheduler(call: Call, schedule: dict[str, Any]) -> dict[str, Any]:
    return {"scheduler": call.console.settings.app_id, "schedule": schedule}


class Search(NamedTuple):
    """The parameters of a search, read as the admin reads them: what is wrong counts as missing."""

    terms: tuple[tuple[bool, re.Pattern[str]], ...]
    """(whether the id must match, pattern)."""
    from_s: int
    to_s: int
    sorted_by: str
    is_descending: bool
    most: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Search:
        """Read the parameters."""
        words = given.get("sort-by", "").lower().split()
        if words in (["asc"], ["desc"]):
            words = ["timestamp", *words]
        field, order = ([*words, "", ""] if len(words) < 3 else ["", ""])[:2]
        most = _number(given.get("max", ""))
        most = MAX_SCHEDULES if most == -1 else most if 0 < most < MAX_FOUND else DEFAULT_MAX
        return cls(
            tuple(map(_term, given.get("schedule-id", "").split(maxsplit=MAX_TERMS)[:MAX_TERMS])),
            _number(given.get("epoch-from", "")),
            _number(given.get("epoch-to", "")),
            field if field in _SORTED_BY else "timestamp",
            order != "asc",
            most,
        )

    @property
    def range(self) -> dict[str, str]:
        """The parameters of a question to a worker for the seconds that are searched."""
        bounds = {"from": self.from_s, "to": self.to_s + 1 if self.to_s > 0 else 0}
        return {name: str(second) for name, second in bounds.items() if 0 < second <= MAX_DUE_S}

    def matches(self, timer: Timer) -> bool:
        """Whether a schedule is among those that are searched."""
        due_s, id = timer["due"], timer["id"]
        in_range = due_s >= self.from_s and (not self.to_s or due_s <= self.to_s)
        return in_range and all((pattern.fullmatch(id) is not None) is must for must, pattern in self.terms)


def _term(word: str) -> tuple[bool, re.Pattern[str]]:
    must, text = (word[0] == "+", word[1:]) if len(word) > 1 and word[0] in "+-" else (True, word)
    # Only `*` has a meaning. The expressions of fnmatch do not backtrack, however many there are.
    return must, re.compile(fnmatch.translate(re.sub(r"[?\[]", r"[\g<0>]", text)))


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII) else 0


# ---- reading --------------------------------------------------------------------------------------------------------


async def _listed(
    call: Call,
    parameters: Mapping[str, str] = {},
    matches: Callable[[Timer], bool] = lambda timer: True,
) -> tuple[list[Timer], bool]:
    """The pending schedules that match, within the limits of a search; and whether all were read.

    Raises:
        Problem: partitions do not answer, so some may be missing.
    """
    parameters = {"limit": str(wire.MAX_LIMIT), **_with_value(call), **parameters}
    found: list[Timer] = []
    values_bytes = 0
    end_s, following = monotonic() + MAX_READING_S, None
    while True:
        answer = await ask(call, wire.LIST_PATH, parameters | ({"cursor": following} if following else {}))
        _check_whole(answer)
        for timer in answer.body["timers"]:
            if _is_schedule(call, timer) and matches(timer):
                values_bytes += len(timer.get("value", ""))
                if len(found) == MAX_SCHEDULES or values_bytes > MAX_VALUES_BYTES:
                    return found, False
                found.append(timer)
        following = answer.body["next"]
        if following is None or monotonic() > end_s:
            return found, following is None


async def _with_id(call: Call, id: str) -> list[Timer]:
    """The pending schedules with an id; two topics may have the same.

    Raises:
        Problem: as :func:`_listed`, or there are too many timers to look through.
    """
    answer = await ask(call, wire.FIND_PATH, {"id": id, **_with_value(call)})
    found = [each for each in answer.body["timers"] if each["state"] == wire.PENDING and _is_schedule(call, each)]
    if found:
        return found
    _check_whole(answer)
    # One that waits for a retry is in another topic, whose machines have no index of ids.
    found, whole = await _listed(call, {"prefix": id}, lambda timer: timer["id"] == id)
    if not found and not whole:
        raise Problem(
            "busy", f"the timers could not be searched for {quoted(id)} in {MAX_READING_S:g} s: try again later"
        )
    return found


def _with_value(call: Call) -> dict[str, str]:
    return {"value": str(int(call.console.settings.queries == "values" and call.user.values))}


def _check_whole(answer: WorkerAnswer) -> None:
    if missing := answer.body["missing"]:
        raise Problem("worker-unreachable", "some partitions do not answer: try again later", missing=missing)


def _is_schedule(call: Call, timer: Timer) -> bool:
    """Whether a timer is a schedule that the user may see."""
    place = topics.parse_source(timer["source"])
    is_schedule = place is not None and place[0] in call.console.settings.schedule_topics
    return is_schedule and call.user.may_use_topic(timer["topic"])


async def _read(call: Call, found: list[Timer]) -> list[dict[str, Any]]:
    """Schedules as JSON of the scheduler, with the fields in the order that Go gives a map."""
    written_s = await call.console.cluster.times([timer["source"] for timer in found])
    return [
        {
            "epoch": timer["due"],
            "id": timer["id"],
            "target-key": callback_key_bytes(timer).decode(errors="replace"),
            "target-topic": timer["topic"],
            "timestamp": written_s.get(timer["source"], 0),
            "topic": timer["source"].rsplit("/", 2)[0],
            "value": timer.get("value"),
        }
        for timer in found
    ]
