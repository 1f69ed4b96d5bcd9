"""The handlers of ``/v1/timers`` and ``/v1/timer``: one timer, its history, lists, and cancels of all that match."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import Any
from urllib.parse import quote

from timers.client import timer_lines
from timers.client.repeat_words import sentences, upcoming
from timers.client.request import TimerRequest, id_key
from timers.console.call import (
    CONFIRMATION_VALID_S,
    Call,
    Reply,
    condition_of,
    handles,
    id_of,
    idempotency_key,
    is_own,
    mark_of,
    record,
)
from timers.console.kafka_cluster import RequestDeletedError, WorkerAnswer
from timers.console.problems import PROBLEM_KINDS, Problem
from timers.console.schemas import MAX_BULK_TIMERS
from timers.core.operation import (
    ABSENT,
    ALREADY_FIRED,
    CANCELLED,
    CHANGED,
    EXISTS,
    REFUSED,
    REPLACED,
    TOO_LATE,
    UNCHANGED,
    UNKNOWN,
)
from timers.core.printable import quoted, utc_text
from timers.errors import (
    InvalidTimerError,
    NoVerdictError,
    QueryError,
    SettingsError,
    TimersError,
    TimerTooLargeError,
    UnacknowledgedError,
    UnreachableError,
)
from timers.wire import checks, topics
from timers.wire import query as wire
from timers.wire.checks import InvalidRequestError
from timers.wire.formats.future_by_id import decode_id
from timers.wire.query import Timer
from timers.wire.verdict import VerdictMessage
from timers.wire.zones import zone_data_version

logger = logging.getLogger(__name__)

CURSOR_VALID_S = 3600.0
"""How long a cursor is valid."""

UNDECIDED = "undecided"

_MAX_CANCELS = 5
"""So often others may cancel the timer of one request with ``If-None-Match: *``, before it is refused."""

_FORBIDDEN, _TOO_MANY = 403, 429
_RETRY_AFTER = {"Retry-After": "1"}


@handles("setTimer")
async def set_timer(call: Call) -> Reply:
    condition, key = condition_of(call.request), idempotency_key(call.request)
    if key is not None:
        return await _set_once(call, key)
    request = _request(call, call.body)
    if condition is None:
        try:
            id = await call.console.cluster.client.schedule_request(request)
        except TimersError as error:
            raise publish_problem(error, request.id) from None
        return _accepted(call, id, _first_due(call, request))
    assert condition == ABSENT, "POST takes no other condition"
    if request.id is None:
        raise Problem("parameter-invalid", "If-None-Match: * needs an id in the body")
    verdict = await _update(call, request, condition)
    if isinstance(verdict, Reply):
        return verdict
    _check_condition(verdict)
    return _accepted(call, request.id, _first_due(call, request), verdict.version)


@handles("setTimers")
async def set_timers(call: Call) -> Reply:
    given = call.body.get("timers") if call.body.keys() == {"timers"} else None
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_BULK_TIMERS:
        raise Problem("parameter-invalid", f'the body is not {{"timers": [...]}} with 1 to {MAX_BULK_TIMERS:,} timers')
    requests = []
    for place, fields in enumerate(given):
        if not isinstance(fields, dict):
            raise Problem("parameter-invalid", f"timers[{place}] is no object with the fields of a timer", place=place)
        try:
            requests.append(_request(call, fields))
        except Problem as problem:
            detail = f"timers[{place}]: {problem}. No timer of the batch was written"
            raise Problem(problem.code, detail, place=place) from None
    written = await asyncio.gather(*map(call.console.cluster.client.schedule_request, requests), return_exceptions=True)
    answers: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for request, result in zip(requests, written, strict=True):
        if isinstance(result, Exception):
            if isinstance(result, TimersError):
                problems.append(publish_problem(result, request.id))
            else:  # raised, it would hide which timers were written
                logger.error("a timer of a batch: an error that no code expects", exc_info=result)
                problems.append(Problem("unknown", "an internal error: the timer may be set or not"))
            answers.append({"code": problems[-1].code, "detail": str(problems[-1])})
        elif isinstance(result, BaseException):
            raise result
        else:
            answers.append(_accepted(call, result, _first_due(call, request)).body)
    if len(problems) == len(requests):
        raise problems[0]
    return Reply({"timers": answers, "failed": len(problems)}, 201)


async def _set_once(call: Call, key: str) -> Reply:
    """Set the timer of an ``Idempotency-Key``, or answer as the first request with this key was answered."""
    mark = mark_of(call.user, key, call.body)
    own_id = call.body.get("id")  # null means none
    id = id_of(call.user, mark) if own_id is None else own_id
    request = _request(call, {**call.body, "id": id})
    verdict = await _update(call, request, ABSENT, mark.encode())
    if isinstance(verdict, Reply):
        return verdict
    if verdict.verdict != EXISTS:
        return _accepted(call, id, _first_due(call, request), verdict.version)
    try:
        found = await call.console.cluster.request_hash(verdict.version or "")
    except RequestDeletedError as deleted:
        if own_id is None:  # only this key makes the id, so the timer is that of the first request
            return Reply(verdict.fields())
        why = f"{deleted}, so it is not known whether it had this Idempotency-Key; nothing was changed"
        about = {"due": verdict.due_s, "version": verdict.version}
        raise Problem("request-deleted", why, _tag(verdict.version), id=id, **about) from None
    first = (found or b"").decode("ascii", "replace")
    if first == mark and verdict.due_s is not None:
        return _accepted(call, id, verdict.due_s, verdict.version)
    if first.partition("/")[0] == mark.partition("/")[0]:
        raise Problem("idempotency-key-reused", "the first request with this Idempotency-Key had another body", id=id)
    if own_id is not None:
        _check_condition(verdict)
    return Reply(verdict.fields())


def _first_due(call: Call, request: TimerRequest) -> int:
    return request.first_due(int(call.console.now_s()))


def _accepted(call: Call, id: str, due_s: int, version: str | None = None) -> Reply:
    headers = {"Location": f"{call.base_path}/v1/timer?id={quote(id, safe='')}", **_tag(version)}
    return Reply({"id": id, "due": due_s, "due_at": utc_text(due_s)}, 201, headers)


def _tag(version: str | None) -> dict[str, str]:
    return {} if version is None else {"ETag": f'"{version}"'}


async def _update(
    call: Call, request: TimerRequest, condition: str | None, request_hash: bytes | None = None
) -> VerdictMessage | Reply:
    """The verdict on a new version, or the answer if none came.

    After a cancel there is no timer to see, but its id is not absent for a time, so that a request that is sent twice
    does not set what was cancelled between. ``If-None-Match: *`` asks for what can be seen: then the request is sent
    again for the version that the cancel has made.
    """
    asked = condition
    assert request.id is not None
    end_s = monotonic() + call.parameters["wait"]
    try:
        for _ in range(_MAX_CANCELS):
            left_s = max(0.0, end_s - monotonic())
            update = call.console.cluster.client.update_if
            verdict = await update(request, asked, request_hash=request_hash, timeout_s=left_s)
            is_cancelled = verdict.verdict in (EXISTS, CHANGED) and verdict.due_s is None
            if condition != ABSENT or request_hash is not None or not is_cancelled:
                break
            asked = verdict.version or ABSENT
    except TimersError as error:
        return _undecided(error, request.id)
    return verdict


def _undecided(error: TimersError, id: str) -> Reply:
    """The answer to a change without a verdict. It is a problem if the change was not written, or may not have been."""
    if not isinstance(error, NoVerdictError):
        raise publish_problem(error, id) from None
    return Reply({"id": id, "verdict": UNDECIDED, "due": None}, 202)


def _check_condition(verdict: VerdictMessage) -> None:
    about = {"due": verdict.due_s, "version": verdict.version}
    if verdict.verdict == TOO_LATE:
        raise _already_fired(verdict.id, verdict.due_s)
    if verdict.verdict in REFUSED:
        code = verdict.verdict
        raise Problem(
            code, f"nothing was changed: {PROBLEM_KINDS[code][1]}", _tag(verdict.version), id=verdict.id, **about
        )


@handles("putTimer")
async def put_timer(call: Call) -> Reply:
    id = call.parameters["id"]
    if "id" in call.body:
        raise Problem("field-invalid", "the id is a parameter of the path, so the body has none")
    condition = condition_of(call.request)
    return _new_version(await _update(call, _request(call, {**call.body, "id": id}), condition))


@handles("moveTimer")
async def move_timer(call: Call) -> Reply:
    id = call.parameters["id"]
    condition = condition_of(call.request)
    _check_id(call, id)
    for name in call.body.keys() - {"at", "delay"}:
        raise Problem(
            "field-invalid", f"{quoted(name[:100])} cannot be changed alone: give `at` or `delay`, or use PUT"
        )
    due_s = _due_s(call, call.body)
    timers, _ = await find(call, id, with_value=False)
    timer = next((each for each in timers if each["id"] == id and _is_by_id(call, each)), None)
    if timer is None:
        raise Problem("not-found", f"there is no timer {quoted(id)} that its sender gave this id", id=id)
    if "version" in timer:
        why = "a timer that repeats cannot be moved: use PUT with another `repeat`, or with a later `from` in it"
        raise Problem("field-invalid", why, id=id)
    source = timer["source"]
    if condition not in (None, source):
        raise Problem(
            "changed", f"nothing was changed: {PROBLEM_KINDS['changed'][1]}", _tag(source), id=id, version=source
        )
    if timer["state"] == wire.FIRED:
        raise _already_fired(id, timer["due"])
    try:
        request = await call.console.cluster.stored_request(id, source, timer.get("topic"))
    except RequestDeletedError as deleted:
        request = await _request_of_row(call, id, source, str(deleted))
    if request is None:
        raise Problem("not-found", f"the request of {quoted(id)} is no longer in its topic: set the timer again", id=id)
    _check_topic(call, request.topic)
    return _new_version(await _update(call, request._replace(at=due_s), source))


async def _request_of_row(call: Call, id: str, source: str, deleted: str) -> TimerRequest | None:
    """The request of a pending timer, made of what its worker has stored; None if this version waits no longer."""
    if call.console.settings.queries != "values":
        why = f"{deleted}, and workers do not show what they have stored: set TIMERS_QUERIES=values, or use PUT"
        raise Problem("request-deleted", why, _tag(source), id=id, version=source)
    timers, _ = await find(call, id, with_value=True)
    timer = next((each for each in timers if each["source"] == source and "headers" in each), None)
    if timer is None:
        return None
    fields = {name: timer[name] for name in ("topic", "key", "headers")}
    return timer_lines.request_of({**fields, "value": {"base64": timer["value"]}, "id": id}, timer["due"])


def _new_version(verdict: VerdictMessage | Reply) -> Reply:
    if isinstance(verdict, Reply):
        return verdict
    _check_condition(verdict)
    return Reply(verdict.fields(), 200 if verdict.verdict in (REPLACED, UNCHANGED) else 201, _tag(verdict.version))


def _is_by_id(call: Call, timer: wire.Timer) -> bool:
    source = topics.parse_source(timer["source"])
    return source is not None and source[0] == call.console.settings.id_topic


@handles("cancelTimer")
async def cancel_timer(call: Call) -> Reply:
    id = call.parameters["id"]
    condition = condition_of(call.request)
    _check_id(call, id)
    try:
        cancel, wait_s = call.console.cluster.client.cancel, call.parameters["wait"]
        verdict = await cancel(id, if_source=condition, timeout_s=wait_s)
    except TimersError as error:
        return _undecided(error, id)
    if verdict.verdict == UNKNOWN or (verdict.verdict == CHANGED and verdict.due_s is None):
        raise Problem(
            "not-found", f"there is no timer {quoted(id)}: never set, cancelled before, or fired long ago", id=id
        )
    if verdict.verdict == ALREADY_FIRED:
        raise _already_fired(id, verdict.due_s)
    _check_condition(verdict)
    return Reply(verdict.fields())


def _already_fired(id: str, due_s: int | None) -> Problem:
    return Problem("already-fired", f"the timer {quoted(id)} has fired already", id=id, due=due_s)


@handles("nextOccurrences")
async def next_occurrences(call: Call) -> Reply:
    given, now_s = dict(call.parameters), int(call.console.now_s())
    id, count = given.pop("id", None), given.pop("count")
    try:
        repeat = timer_lines.repeat_of(given)
        repeat.check(now_s)
    except InvalidTimerError as error:
        raise Problem("field-invalid", str(error)) from None
    if repeat.every_s is not None and repeat.from_s is None:
        repeat = repeat.with_from(now_s)
    found = upcoming(repeat, now_s, count, None if id is None else id_key(id))
    words = sentences(repeat, max(now_s, repeat.from_s or 0))
    return Reply({"occurrences": [each.fields() for each in found], "words": words, "zone_data": zone_data_version()})


@handles("getTimer")
async def get_timer(call: Call) -> Reply:
    check_values(call, call.parameters["value"])
    id = call.parameters["id"]
    timers, missing = await find(call, id, with_value=call.parameters["value"])
    tag = _tag(wire.version_of(timers[0]) if len(timers) == 1 else None)
    return Reply({"id": id, "timers": timers, "missing": missing}, 200, tag)


async def find(call: Call, id: str, *, with_value: bool) -> tuple[list[wire.Timer], list[Any]]:
    """The timers with this id that the user may see, and the partitions that did not answer. None is a problem."""
    answer = await ask(call, wire.FIND_PATH, {"id": id, "value": str(int(with_value))})
    timers = [timer for timer in answer.body["timers"] if call.user.may_use_topic(timer.get("topic"))]
    missing = answer.body["missing"]
    if not timers and missing:
        raise Problem(
            "worker-unreachable",
            f"it is not known yet whether {quoted(id)} exists: partitions that may have it do not answer",
            missing=missing,
        )
    if not timers:
        raise Problem("not-found", f"there is no timer {quoted(id)}: never set, cancelled, or fired long ago", id=id)
    return timers, missing


@handles("listTimers")
async def list_timers(call: Call) -> Reply:
    given = call.parameters
    check_values(call, given["value"])
    call.check_topic(given.get("topic"), "see timers of")
    purpose = f"cursor of {[given.get(name) for name in _SELECTION]}"
    now_s = call.console.now_s()
    after = call.console.signer.open(purpose, call.user.name, given["cursor"], now_s) if "cursor" in given else None
    selection = {name: given[name] for name in _SELECTION if name in given} | {"value": int(given["value"])}
    timers, following, missing = await _matching_page(call, selection, after, given["limit"])
    return Reply(
        {
            "searched_to": following and wire.parse_cursor(following)[0],
            "timers": timers,
            "next": following and call.console.signer.sign(purpose, call.user.name, following, now_s + CURSOR_VALID_S),
            "complete": not missing,
            "missing": missing,
        }
    )


def check_values(call: Call, with_values: bool) -> None:
    if with_values and not (call.user.values and call.console.settings.queries == "values"):
        raise Problem("values-hidden", "values are shown with TIMERS_QUERIES=values, to users with values = true")


async def ask(call: Call, path: str, parameters: dict[str, str]) -> WorkerAnswer:
    """The answer of a worker's page to a question that it accepts."""
    try:
        answer = await call.console.cluster.ask(path, parameters)
    except QueryError as error:
        raise Problem("worker-unreachable", str(error)) from None
    if "timers" in answer.body and "missing" in answer.body:
        return answer
    why = str(answer.body.get("error", f"the worker answered {answer.status}"))
    if answer.status == _TOO_MANY:
        raise Problem("busy", why, _RETRY_AFTER)
    code = {_FORBIDDEN: "queries-off", 400: "parameter-invalid"}.get(answer.status, "worker-unreachable")
    raise Problem(code, why)


def _request(call: Call, fields: Any) -> TimerRequest:
    """The request for a timer with these fields, as JSON has them."""
    _check_id(call, fields.get("id"))
    try:
        topic = fields.get("topic", "")
        checks.check_topic(topic if isinstance(topic, str) else repr([topic]), "topic")
        if fields.get("value") is None:
            raise InvalidRequestError("value-missing", 'value is missing: give text, "" for an empty one')
    except InvalidRequestError as error:
        raise Problem(error.code, str(error)) from None
    try:
        timer_lines.check_names(fields)
        repeat = timer_lines.repeat_in(fields, int(call.console.now_s()))
        request = timer_lines.request_of(fields, _due_s(call, fields) if repeat is None else None, repeat)
    except InvalidTimerError as error:
        raise Problem("field-invalid", str(error)) from None
    if repeat is not None and request.id is None:
        raise Problem("id-missing", "a timer that repeats needs an id, by which it is changed and cancelled")
    _check_topic(call, request.topic)
    return request


def _due_s(call: Call, fields: Any) -> int:
    try:
        return timer_lines.due_of(fields, int(call.console.now_s() * 1e9))
    except InvalidTimerError as error:
        raise Problem("due-invalid", str(error)) from None


def _check_topic(call: Call, topic: str) -> None:
    call.check_topic(topic, "set timers for")
    if call.user.topics is not None and topic in call.console.settings.own_topics:
        raise Problem("topic-forbidden", f"{quoted(topic)} is a topic of the engine")


def _check_id(call: Call, id: Any) -> None:
    if id is None:
        return
    try:
        decode_id(id.encode() if isinstance(id, str) else b"")
    except InvalidRequestError as error:
        raise Problem(error.code, str(error)) from None
    except UnicodeEncodeError:
        raise Problem("id-not-text", "the id has characters that UTF-8 cannot carry") from None
    if not (call.user.may_use_id(id) or is_own(call.user, id)):
        raise Problem("id-forbidden", f"you may not set or cancel a timer with the id {quoted(id)}")


def publish_problem(error: TimersError, id: str | None) -> Problem:
    """The answer when the brokers did not take a request, or did not say so."""
    if isinstance(error, InvalidTimerError):
        return Problem("value-too-large" if isinstance(error, TimerTooLargeError) else "field-invalid", str(error))
    if isinstance(error, SettingsError):
        return Problem("ids-off", str(error))
    if isinstance(error, UnacknowledgedError):
        again = (
            "a POST or PUT that is sent again sets it again if it has fired meanwhile, unless it has an "
            "Idempotency-Key or If-None-Match: *"
            if id
            else "look for it before you send it again"
        )
        return Problem("unknown", f"{error}. It is unknown whether the timer is set; {again}", outcome="unknown")
    return Problem("brokers-unreachable" if isinstance(error, UnreachableError) else "publish-refused", str(error))


@handles("getHistory")
async def get_history(call: Call) -> Reply:
    id = call.parameters["id"]
    timer, not_found = None, None
    try:
        (timer, *_), _ = await find(call, id, with_value=False)
    except Problem as problem:
        if problem.code != "not-found":
            raise
        not_found = problem  # the topics may still have what a worker forgets, such as a cancelled timer
    history = await call.console.cluster.history(id, timer)
    # A user of some topics sees nothing if none is known.
    sees_all = all(map(call.user.may_use_topic, history.targets.values() or (None,)))
    if not_found is not None and not (history.events and sees_all):
        raise not_found
    events, unread = history.events, history.unread
    if timer is not None and not sees_all:
        seen = {source for source, topic in history.targets.items() if call.user.may_use_topic(topic)}
        seen.add(timer["source"])
        events = [each for each in events if each["what"] == "held" or topics.is_named(each.get("source", ""), seen)]
        if len(events) < len(history.events):
            why = "events of versions are left out whose callback topic you may not see, or is not known"
            unread = [*unread, {"topic": call.console.settings.id_topic, "reason": why}]
    return Reply({"timer": timer, "events": events, "unread": unread})


MAX_COUNTING_S = 2.0
MAX_STEP_S = 5.0
SAMPLE = 10

AT_ONCE = 500
"""Cancels that are written before their verdicts are awaited."""

VERDICT_S = 5.0
"""How long to wait for a verdict. After this the cancel counts as undecided; it takes effect when a worker reads it."""

_SELECTION = ("topic", "from", "to", "prefix", "contains", "key")


@handles("cancelTimers")
async def cancel_timers(call: Call) -> Reply:
    """Cancels all timers that match a filter, in steps that the caller asks for.

    Each step is one request, so it can be stopped by sending no other one. The version that was listed is cancelled:
    one that replaced it since is not, unless a later page lists it.
    """
    selection = {name: call.body[name] for name in _SELECTION if name in call.body}
    if not selection:
        raise Problem("parameter-invalid", f"say which: at least one of {', '.join(_SELECTION)}")
    call.check_topic(selection.get("topic"), "cancel timers of")
    if not call.console.settings.id_topic:
        raise Problem("ids-off", "TIMERS_ID_TOPIC is empty, so no timer can be cancelled")
    purpose, now_s = f"confirmation to cancel {sorted(selection.items())}", call.console.now_s()
    if "confirm" not in call.body:
        counted = await _count_matching(call, selection)
        return Reply(
            {
                **counted,
                "confirm": call.console.signer.sign(purpose, call.user.name, None, now_s + CONFIRMATION_VALID_S),
            }
        )
    signer = call.console.signer
    position = signer.open(purpose, call.user.name, call.body["confirm"], now_s)
    verdicts, following, problem = await _cancel_some(call, selection, position)
    counts = {name: verdicts[name] for name in (CANCELLED, ALREADY_FIRED, TOO_LATE, CHANGED, UNDECIDED, "left_out")}
    is_last = following is None and problem is None
    again = None if is_last else signer.sign(purpose, call.user.name, following, now_s + CURSOR_VALID_S)
    if problem is not None:
        raise Problem(problem.code, str(problem), problem.headers, **problem.more, verdicts=counts, next=again)
    return Reply({"verdicts": counts, "next": again})


async def _count_matching(call: Call, selection: dict[str, Any]) -> dict[str, Any]:
    """How many timers match, as far as two seconds reach, and the first ten of them."""
    sample: list[Timer] = []
    matching = left_out = 0
    missing: list[Any] = []
    end_s, following = monotonic() + MAX_COUNTING_S, None
    while True:
        timers, following, missing = await _matching_page(call, selection, following)
        mine = [timer for timer in timers if _is_cancellable(call, timer)]
        left_out += len(timers) - len(mine)
        matching += len(mine)
        sample += mine[: SAMPLE - len(sample)]
        if following is None or monotonic() > end_s:
            break
    whole = following is None and not missing
    return {"matching": matching, "at_least": not whole, "left_out": left_out, "sample": sample, "missing": missing}


async def _cancel_some(
    call: Call, selection: dict[str, Any], position: Any
) -> tuple[Counter[str], Any, Problem | None]:
    """Cancel timers for five seconds.

    Returns:
        The number of each verdict, where the next step begins, and why this one ended early. A page that could not be
        cancelled whole is the first of the next step: those of its timers that are cancelled are not listed again.
    """
    verdicts: Counter[str] = Counter()
    end_s = monotonic() + MAX_STEP_S
    while True:
        try:
            timers, following, missing = await _matching_page(call, selection, position, AT_ONCE)
            if missing:
                raise Problem("worker-unreachable", "some partitions do not answer: try again later", missing=missing)
            mine = [timer for timer in timers if _is_cancellable(call, timer)]
            if mine:
                await record(call, [timer["id"] for timer in mine])
        except Problem as problem:
            return verdicts, position, problem
        results = await asyncio.gather(*(_cancel_one(call, timer) for timer in mine))
        verdicts.update(each for each in results if isinstance(each, str))
        for each in results:
            if isinstance(each, Problem):
                return verdicts, position, each
        verdicts["left_out"] += len(timers) - len(mine)
        position = following
        if position is None or monotonic() > end_s:
            return verdicts, position, None


async def _cancel_one(call: Call, timer: Timer) -> str | Problem:
    """The verdict, or why the cancel was not written: the others of the page are not given up for it."""
    try:
        cancel = call.console.cluster.client.cancel
        return (await cancel(timer["id"], if_source=wire.condition_of(timer), timeout_s=VERDICT_S)).verdict
    except NoVerdictError:
        return UNDECIDED
    except TimersError as error:
        return publish_problem(error, timer["id"])


async def _matching_page(
    call: Call, selection: dict[str, Any], following: Any, limit: int = wire.MAX_LIMIT
) -> tuple[list[Timer], Any, list[Any]]:
    parameters = {name: str(value) for name, value in selection.items()} | {"limit": str(limit)}
    answer = await ask(call, wire.LIST_PATH, parameters | ({"cursor": following} if following else {}))
    timers = [timer for timer in answer.body["timers"] if call.user.may_use_topic(timer["topic"])]
    return timers, answer.body["next"], answer.body["missing"]


def _is_cancellable(call: Call, timer: Timer) -> bool:
    """Whether a timer has an id, waits for its first attempt, and belongs to this user."""
    return _is_by_id(call, timer) and "retry" not in timer and call.user.may_use_id(timer["id"])
