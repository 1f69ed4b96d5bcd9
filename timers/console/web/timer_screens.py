"""The pages of timers, of dead letters and of queues: lists, one of them, changes, and a new timer."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from timers.client.timer_lines import laid_out, repeat_of
from timers.client.times import parse_duration
from timers.console.access import Principal
from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.timer_pages import UNDECIDED
from timers.console.web.page import Meaning, Page, kept_number, link, meanings, moment, screen, selected
from timers.core.operation import ALREADY_FIRED, CANCELLED, CHANGED, TOO_LATE
from timers.core.printable import hexdump, printable_json, quoted
from timers.errors import InvalidTimerError, TimersError
from timers.process.config.settings import Settings
from timers.wire.query import FIRED, REPLACED
from timers.wire.repeat import LATEST
from timers.wire.topics import requests_by_id

_BEARER = '-H "Authorization: Bearer $TOKEN" '


def programs_of(page: Page, fields: dict[str, str]) -> dict[str, str]:
    """The timer of a form with curl and in Python, as programs that run when they are copied."""
    try:
        body = _body(fields)
    except Problem as problem:
        return dict.fromkeys(("curl", "python"), f"# {problem.body['detail']}")
    user = page.call.user if page.settings.console_users_file else None
    return {"curl": as_curl(body, page.base_url, user), "python": as_python(body, page.settings)}


def as_curl(body: Mapping[str, Any], base_url: str, user: Principal | None = None) -> str:
    """A command. For a user with a password curl asks for it; others put a token into the variable ``TOKEN``."""
    text = printable_json(json.dumps(dict(body), ensure_ascii=False))
    login = "" if user is None else f"-u {shlex.quote(user.name)} " if user.password else _BEARER
    url = shlex.quote(f"{base_url}/v1/timers")
    return f"curl {login}-X POST {url} \\\n  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(text)}"


def as_python(body: Mapping[str, Any], settings: Settings) -> str:
    arguments = [repr(body.get(name)) for name in ("topic", "key", "value")]
    imports = []
    at = body.get("at", "")
    if "delay" in body:
        arguments.append(f"delay={_seconds(body['delay'])}")
    elif at.isdigit():
        arguments.append(f"at={at}")
    elif at:
        instant, _, zone = at.partition(" ")
        local = f".replace(tzinfo=ZoneInfo({zone!r}))" if zone else ""
        arguments.append(f"at=datetime.fromisoformat({instant!r}){local}")
        imports = ["from datetime import datetime", *(["from zoneinfo import ZoneInfo"] if zone else []), ""]
    arguments += [f"{name}={body[name]!r}" for name in ("token", "id") if name in body]
    if "headers" in body:
        arguments.append(f"headers={[tuple(pair) for pair in body['headers']]!r}")
    arguments += [f"repeat={_rule_as_python(body['repeat'])}"] if "repeat" in body else []
    names = "Repeat, TimersClient" if "repeat" in body else "TimersClient"
    where = ", ".join([repr(settings.brokers), *(f"{name}={topic!r}" for name, topic in _own_names(settings, body))])
    lines = [*imports, f"from timers.client import {names}", "", f"with TimersClient({where}) as client:"]
    return "\n".join([*lines, f"    print(client.schedule({', '.join(arguments)}))"])


def _own_names(settings: Settings, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The arguments of a client that it needs because a topic has another name than by default."""
    if "id" in body:
        if settings.id_topic != requests_by_id(Settings.request_topic):
            yield "id_topic", settings.id_topic
    elif settings.request_topic != Settings.request_topic:
        yield "request_topic", settings.request_topic


def _rule_as_python(rule: Mapping[str, str]) -> str:
    """A call that makes the rule; a rule that is wrong as it was typed."""
    try:
        repeat = repeat_of(rule, lambda note: None)
    except InvalidTimerError:
        return repr(dict(rule))
    given: dict[str, Any] = {"from_": repeat.from_s, "until": repeat.until_s, "spread": repeat.spread_s or None}
    given |= {"except_": list(repeat.excepted) or None}
    given |= {"catch_up": None if repeat.catch_up == LATEST else repeat.catch_up}
    more = [f"{name}={part!r}" for name, part in given.items() if part is not None]
    if repeat.cron_line is not None:
        return f"Repeat.cron({', '.join([repr(repeat.cron_line), f'zone={repeat.zone!r}', *more])})"
    return f"Repeat.every({', '.join([str(repeat.every_s), *more])})"


def _seconds(text: str) -> str:
    try:
        return str(parse_duration(text))
    except InvalidTimerError:
        return repr(text)


COUNTED = {
    CANCELLED: "cancelled",
    ALREADY_FIRED: "fired before",
    TOO_LATE: "fired meanwhile",
    CHANGED: "changed meanwhile: they stay as they are now",
    UNDECIDED: "undecided: their cancel takes effect when a worker reads it",
    "left_out": "left out: they have no id, wait for a retry, or are not yours",
}
"""Name of a number in the answer of a step -> what the page says."""


@screen("/timers/cancel", "POST")
async def cancel_all(page: Page) -> Reply:
    """Counts the timers that match; with a confirmation, cancels for some seconds."""
    form = await page.form()
    selection = _selected(form, page.now_s)
    if not form.get("confirm"):
        preview = await page.api("cancelTimers", _asked(selection))
        return page.show("parts/cancel_preview.html", preview=preview, selection=selection)
    counts, problem, following = {name: kept_number(form.get(name)) for name in COUNTED}, None, form["confirm"]
    try:
        step = await page.api("cancelTimers", {**_asked(selection), "confirm": following})
        counts = {name: counts[name] + step["verdicts"][name] for name in COUNTED}
        following = step["next"]
    except Problem as error:  # the page still shows how many were cancelled; the rest can be tried again
        problem = error.body
        counts = {name: counts[name] + problem.get("verdicts", {}).get(name, 0) for name in COUNTED}
        following = problem.get("next", following)
    context: dict[str, Any] = {"counts": counts, "problem": problem, "following": following, "words": COUNTED}
    return page.show("parts/cancel_step.html", selection=selection, matching=form.get("matching", ""), **context)


CHOSEN = {**COUNTED, "not-found": "not pending any more", "unknown": "not known: look at them"}
"""Verdict, or code of a problem, of one timer that was chosen -> what the page says."""


@screen("/timers/cancel-chosen", "POST")
async def cancel_chosen(page: Page) -> Reply:
    """Cancels the timers whose boxes are checked."""
    ids = await _chosen(page, "id", PAGE_TIMERS)

    async def one(id: str) -> str | Problem:
        try:
            verdict: str = (await page.api("cancelTimer", id=id))["verdict"]
            return verdict
        except Problem as problem:
            return problem.code if problem.code in CHOSEN else problem

    found = await asyncio.gather(*map(one, ids))
    problem = next((each.body for each in found if isinstance(each, Problem)), None)
    counts = Counter(each for each in found if isinstance(each, str))
    return page.show("parts/chosen.html", counts=counts, words=CHOSEN, problem=problem)


async def _chosen(page: Page, name: str, most: int) -> list[str]:
    """The values of the boxes with this name that are checked."""
    chosen = [value for field, value in await page.fields() if field == name]
    if not 1 <= len(chosen) <= most:
        raise Problem("parameter-invalid", f"choose between 1 and {most}, not {len(chosen)}")
    return chosen


PAGE_TIMERS = 100
SEARCH_S = 3.0
"""A list without a match ends after this time, and says how far it was searched."""

SHOWN_BYTES = 64 * 1024
"""More of a value is not shown: a browser is slow with it."""

DEAD_LETTER = "dead-letter"
"""An event of a history."""

VALUE_FORMS = ("text", "json", "hex")


# ---- the list -------------------------------------------------------------------------------------------------------


@screen("/timers")
async def timers(page: Page) -> Reply:
    selection = _selected(page.given, page.now_s)
    listed = await page.soon(_listed(page, selection), silent="worker-unreachable")
    following = link("/timers", **selection, cursor=listed["next"]) if listed and listed["next"] else ""
    return page.show("timers.html", listed=listed, selection=selection, following=following)


@screen("/topics")
async def topics(page: Page) -> Reply:
    """The callback topics that complete what is typed into a form."""
    found = await page.call.console.cluster.topics(page.call.user.may_use_topic)
    return page.show("parts/topics.html", topics=found)


async def _listed(page: Page, selection: dict[str, Any]) -> Any:
    """A page of the list. A rare topic or id is searched for some seconds."""
    end_s, cursor = monotonic() + SEARCH_S, page.given.get("cursor")
    while True:
        listed = await page.api("listTimers", limit=PAGE_TIMERS, cursor=cursor, **_asked(selection))
        cursor = listed["next"]
        if listed["timers"] or listed["missing"] or cursor is None or monotonic() > end_s:
            return listed


def _selected(given: Mapping[str, str], now_s: float) -> dict[str, Any]:
    return selected(given, ("topic", "prefix", "part", "key"), ("from", "to"), now_s)


def _asked(selection: Mapping[str, Any]) -> dict[str, Any]:
    """The filter as the API has it. A field of a form with the name ``contains`` would hide a method of the form."""
    return {"contains" if name == "part" else name: value for name, value in selection.items()}


# ---- one timer ------------------------------------------------------------------------------------------------------


@screen("/timer")
async def timer(page: Page) -> Reply:
    id = _id(page)
    try:
        found = await page.soon(page.api("getTimer", id=id), silent="worker-unreachable")
        return page.show(
            "timer.html",
            id=id,
            found=found,
            with_ids=_has_id(page, found),
            past=None,
            past_state="",
            rule=rule_fields(found["timers"][0]) if found and found["timers"] else {},
        )
    except Problem as problem:
        if problem.code != "not-found":
            raise
    past = await page.soon(page.api("getHistory", id=id))  # a worker forgets a cancelled timer, its topic does not
    whats = [event["what"] for event in past["events"]] if past else []
    state = next((what for what in reversed(whats) if what in (CANCELLED, FIRED, DEAD_LETTER)), "no longer known")
    return page.show(
        "timer.html", id=id, found=None, with_ids=False, past=past, past_state=state if past else "", rule={}
    )


def _has_id(page: Page, found: dict[str, Any] | None) -> bool:
    """Whether the timer can be changed: it is pending, and its sender gave it an id."""
    timers = found["timers"] if found else []
    prefix = f"{page.settings.id_topic}/"
    return bool(
        len(timers) == 1
        and page.settings.id_topic
        and timers[0]["source"].startswith(prefix)
        and timers[0].get("state") != REPLACED
    )


@screen("/timer/history")
async def history(page: Page) -> Reply:
    """A part of the page, which takes seconds to read."""
    return page.show("parts/history.html", history=await page.api("getHistory", id=_id(page)))


@screen("/timer/value")
async def value(page: Page) -> Reply:
    """The value of the callback, as text, JSON or hex."""
    (found, *_) = (await page.api("getTimer", id=_id(page), value="1"))["timers"]
    shown, why_not = "", ""
    content = base64.b64decode(found["value"]) if "value" in found else None
    if content is None:
        form, why_not = "text", "The worker no longer has the value of this timer."
    else:
        form = page.given.get("as") or best_form(content)
        shown, why_not = in_form(content, form)
    length = len(content or b"")
    return page.show(
        "parts/value.html", id=_id(page), form=form, forms=VALUE_FORMS, shown=shown, why_not=why_not, length=length
    )


def best_form(content: bytes) -> str:
    """The form in which a value is shown first: an object or a list as JSON, bytes that are no text as hex."""
    if in_form(content, "text")[1]:
        return "hex"
    return "json" if content.lstrip()[:1] in (b"{", b"[") and not in_form(content, "json")[1] else "text"


def in_form(content: bytes, form: str) -> tuple[str, str]:
    """A value as text for people, and why it cannot be shown so."""
    if form == "hex":
        return "\n".join(hexdump(content[:SHOWN_BYTES])), ""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "", "It is not text in UTF-8: see it as hex."
    if form == "json":
        try:
            text = laid_out(text)
        except (ValueError, RecursionError):
            return "", "It is not JSON."
    return text[:SHOWN_BYTES], ""


@screen("/timer/cancel", "POST")
async def cancel(page: Page) -> Reply:
    id = _id(page)
    await page.form()
    verdict = await page.api("cancelTimer", id=id)
    return page.show("parts/verdict.html", id=id, verdict=verdict, due_s=None)


@screen("/timer/move", "POST")
async def move(page: Page) -> Reply:
    """Changes the due time."""
    id, form = _id(page), await page.form()
    due_s = moment("due", form.get("due", ""), page.now_s)
    verdict = await page.api("moveTimer", {"at": due_s}, id=id)
    return page.show("parts/verdict.html", id=id, verdict=verdict, due_s=due_s)


def _id(page: Page) -> str:
    return page.needed("id", "the id of a timer, or its source")


# ---- a new timer ----------------------------------------------------------------------------------------------------


@screen("/timers/new")
async def new(page: Page) -> Reply:
    fields = dict.fromkeys(("topic", "key", "value", "at", "id", "token", "headers"), "") | {"delay": "15m"}
    fields |= dict.fromkeys(RULE, "") | page.given
    fields["when"] = next((name for name in ("cron", "every", "at") if fields[name]), "delay")
    return page.show("new.html", fields=fields, programs=programs_of(page, fields))


@screen("/timers/new/next", "POST")
async def next_occurrences(page: Page) -> Reply:
    """When a timer with the rule of the form would fire next."""
    body = _body(await page.form())
    rule = body.get("repeat", {})
    if not rule.keys() & {"cron", "every"}:
        return page.show("parts/next.html", found=None)
    return page.show("parts/next.html", found=await _upcoming(page, rule, body.get("id")))


@screen("/timer/next")
async def next_of_timer(page: Page) -> Reply:
    """When a timer that repeats fires next: a part of its page."""
    found = (await page.api("getTimer", id=_id(page)))["timers"]
    timer = found[0] if found else {}
    if not (rule_fields(timer).keys() & {"cron", "every"}):  # it has ended, or is a single one by now
        return page.show("parts/next.html", found=None)
    return page.show("parts/next.html", found=await _upcoming(page, rule_fields(timer), timer["id"]))


def rule_fields(timer: Mapping[str, Any]) -> dict[str, str]:
    """The rule of a timer, as a form has it; empty: it does not repeat."""
    parts = (part.partition("=") for part in timer.get("repeat", "").split(";"))
    rule = {name.strip().replace("-", "_"): text.strip() for name, _, text in parts if text.strip()}
    return {name: f"{text}s" if name in ("every", "spread") else text for name, text in rule.items()}


async def _upcoming(page: Page, rule: Mapping[str, str], id: str | None) -> Any:
    return await page.api(
        "nextOccurrences", id=id, **{f"{name}_": text for name, text in rule.items() if name != "catch_up"}
    )


@screen("/timers/new/program", "POST")
async def as_program(page: Page) -> Reply:
    """The same timer with curl and in Python."""
    return page.show("parts/programs.html", programs=programs_of(page, await page.form()))


@screen("/timers/new", "POST")
async def set_timer(page: Page) -> Reply:
    body = _body(await page.form())
    accepted = await page.api("setTimer", body)
    is_missing = False
    with suppress(TimersError, Problem):  # the timer is set, whatever is known of its topic
        is_missing = not await page.call.console.cluster.topics(body["topic"].__eq__)
    shown = {"topic": body["topic"], "is_missing": is_missing, "has_id": "id" in body}
    return page.show("parts/accepted.html", 201, accepted=accepted, **shown)


_PARTS = {"cron": ("cron", "zone"), "every": ("every",)}
_MORE = ("from", "until", "catch_up", "spread", "except")
RULE = ("cron", "zone", "every", *_MORE)
"""Fields of the rule of a timer that repeats."""


def _body(fields: dict[str, str]) -> dict[str, Any]:
    """The body for the API: a field that is empty is missing, except the value."""
    when = fields.get("when", "delay")
    body: dict[str, Any] = {name: fields[name] for name in ("topic", "key", "id", "token") if fields.get(name)}
    if when in _PARTS:
        body["repeat"] = {name: fields[name] for name in (*_PARTS[when], *_MORE) if fields.get(name)}
    elif fields.get(when):
        body[when] = fields[when]
    if headers := fields.get("headers", "").strip():
        body["headers"] = [_header(line) for line in headers.splitlines() if line.strip()]
    return body | {"value": fields.get("value", "").replace("\r\n", "\n")}


def _header(line: str) -> list[str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise Problem("field-invalid", f"headers: {quoted(line[:100])} is not of the form name: value")
    return [name.strip(), value.strip()]


@screen("/queues")
async def queues(page: Page) -> Reply:
    listed = await page.soon(page.api("listQueues"))
    return page.show("queues.html", listed=listed)


@screen("/queue")
async def queue(page: Page) -> Reply:
    name = page.needed("name", "the name of a queue")
    found = await page.soon(page.api("getQueue", name=name, topic=page.given.get("topic")))
    return page.show("queue.html", name=name, queue=found)


def _selected_letters(page: Page, given: Mapping[str, str]) -> dict[str, Any]:
    return selected(given, ("code", "topic", "queue", "part"), ("since", "until"), page.now_s, is_past=True)


PAGE_LETTERS = 50
NO_MEANING = Meaning("This version does not know the code.", "Look at the version that wrote it.")


@screen("/dead-letters")
async def letters(page: Page) -> Reply:
    selection = _selected_letters(page, page.given)
    figures, listed = await asyncio.gather(
        page.figures(),
        page.soon(
            page.api("listDeadLetters", limit=PAGE_LETTERS, cursor=page.given.get("cursor"), **_asked(selection))
        ),
    )
    following = link("/dead-letters", **selection, cursor=listed["next"]) if listed and listed["next"] else ""
    counts: Counter[str] = Counter()
    for worker in figures.workers if figures else ():
        counts.update(worker.get("dead_letters") or {})
    return page.show(
        "letters.html",
        listed=listed,
        selection=selection,
        following=following,
        counts=counts.most_common(),
        meanings=meanings(),
        no_meaning=NO_MEANING,
    )


@screen("/dead-letter")
async def letter(page: Page) -> Reply:
    name = page.needed("name", "the position of a dead letter")
    found = await page.soon(page.api("getDeadLetter", name=name))
    code = found["code"] if found else ""
    return page.show("letter.html", name=name, letter=found, meaning=meanings().get(code, NO_MEANING))


@screen("/dead-letter/request")
async def request_of(page: Page) -> Reply:
    """Key, value and headers of its request."""
    found = await page.api("getDeadLetter", name=page.given.get("name"), value="1")
    return page.show("parts/letter_request.html", request=json.dumps(found["request"], indent=2, ensure_ascii=False))


@screen("/dead-letter/retry", "POST")
async def retry_one(page: Page) -> Reply:
    await page.form()
    done = await page.api("retryDeadLetters", {"names": [page.given.get("name")]})
    return page.show("parts/retried.html", done=done)


@screen("/dead-letters/retry-chosen", "POST")
async def retry_chosen(page: Page) -> Reply:
    """Publishes the dead letters whose boxes are checked."""
    done = await page.api("retryDeadLetters", {"names": await _chosen(page, "name", PAGE_LETTERS)})
    return page.show("parts/retried.html", done=done)


@screen("/dead-letters/retry", "POST")
async def retry_all(page: Page) -> Reply:
    """Says how many match, then publishes them in steps."""
    form = await page.form()
    selection = _selected_letters(page, form)
    body = {("codes" if name == "code" else name): value for name, value in _asked(selection).items()}
    if "codes" in body:
        body["codes"] = [body["codes"]]
    if form.get("confirm"):
        done = await page.api("retryDeadLetters", {**body, "confirm": form["confirm"]})
        published = kept_number(form.get("published")) + done["published"]
        return page.show(
            "parts/retried.html", done=done, published=published, selection=selection, confirm=done["confirm"]
        )
    preview = await page.api("retryDeadLetters", body)
    return page.show("parts/retry_preview.html", preview=preview, selection=selection)
