"""The handlers of dead letters and of queues."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from timers.console.call import CONFIRMATION_VALID_S, Call, Reply, handles
from timers.console.letter_box import FoundLetters, Ranges
from timers.console.problems import Problem
from timers.console.timer_pages import CURSOR_VALID_S, check_values
from timers.core.printable import quoted
from timers.errors import NameTakenError, PublishError, QueueError, RetryRefusedError
from timers.offline.dead_letters.letters import Letter, LetterFilter, QueueTopics, full_name
from timers.queue.inspection import QueueStats

_Queue = TypeVar("_Queue", QueueTopics, QueueStats)

_SELECTION = ("codes", "topic", "queue", "contains", "since", "until")


@handles("listDeadLetters")
async def list_letters(call: Call) -> Reply:
    given = call.parameters
    selection = {"codes": given.get("code", []), **{name: given.get(name) for name in _SELECTION[1:]}}
    purpose = f"cursor of dead letters {sorted(selection.items())}"
    now_s = call.console.now_s()
    ends = call.console.signer.open(purpose, call.user.name, given["cursor"], now_s) if "cursor" in given else None
    letter_filter = await _filter(call, selection)
    found = await call.console.cluster.letters(
        letter_filter, given["limit"], ends and {int(partition): end for partition, end in ends.items()}
    )
    page = found.page
    visible = [letter for letter in page.letters if call.user.may_use_topic(letter.summary.topic)]
    following = (
        call.console.signer.sign(purpose, call.user.name, page.ends, now_s + CURSOR_VALID_S) if page.ends else None
    )
    shown = [_shown(letter, found) for letter in visible]
    return Reply({"dead_letters": shown, "next": following, "missing": _missing(found.missing)})


@handles("getDeadLetter")
async def get_letter(call: Call) -> Reply:
    check_values(call, call.parameters["value"])
    (letter, *_), found = await _named(call, [call.parameters["name"]])
    return Reply(_shown(letter, found, with_request=call.parameters["value"]))


@handles("retryDeadLetters")
async def retry_letters(call: Call) -> Reply:
    body = dict(call.body)
    names, confirm, only_look = body.pop("names", None), body.pop("confirm", None), body.pop("dry_run", False)
    if (names is None) == (not body):
        raise Problem("parameter-invalid", f"say which: names, or at least one of {', '.join(_SELECTION)}")
    purpose = f"confirmation to retry dead letters {sorted(body.items())}"
    now_s = call.console.now_s()
    ranges: Ranges | None = None
    if names is not None:
        letters, _ = await _named(call, names)  # those that the user may see
        letter_filter = LetterFilter(names=frozenset(letter.position for letter in letters))
    else:
        letter_filter = await _filter(call, body)
        if call.user.topics is not None and letter_filter.topic is None and letter_filter.queue is None:
            raise Problem("topic-forbidden", "name one of your topics")
    if confirm is not None:
        content = call.console.signer.open(purpose, call.user.name, confirm, now_s)
        ranges = {int(partition): (start, end) for partition, (start, end) in content.items()}
    elif names is None:
        only_look = True
    try:
        result = await call.console.cluster.retry(letter_filter, ranges, only_look=only_look)
    except (PublishError, NameTakenError) as error:
        why = f"{error}. It is unknown whether requests were published; those that were are marked as retried"
        raise Problem("unknown", why, outcome="unknown") from None
    except RetryRefusedError as error:
        raise Problem("conflict", str(error)) from None
    following = None
    if names is None and (only_look or result.more):
        following = call.console.signer.sign(purpose, call.user.name, result.rest, now_s + CONFIRMATION_VALID_S)
    shown = {**result._asdict(), "missing": _missing(result.missing), "confirm": following}
    del shown["rest"]
    return Reply(shown)


async def _named(call: Call, names: list[str]) -> tuple[list[Letter], FoundLetters]:
    """The dead letters with these names. It is a problem if one does not exist, or the user may not see it."""
    own = call.console.settings.dead_letter_topic
    full = frozenset(filter(None, (full_name(name, own) for name in names)))
    found = await call.console.cluster.letters(LetterFilter(names=full), len(full), None)
    letters = [letter for letter in found.page.letters if call.user.may_use_topic(letter.summary.topic)]
    missing = sorted(full.difference(*(letter.mark_key for letter in letters)))
    if missing and found.missing:
        why = ", ".join(f"{partition}: {reason}" for partition, reason in sorted(found.missing.items()))
        raise Problem(
            "brokers-unreachable", f"it is not known whether there is a dead letter {quoted(missing[0])}: {why}"
        )
    if missing and found.page.ends:
        why = f"it is not known whether there is a dead letter {quoted(missing[0])}: only the newest could be read"
        raise Problem("busy", f"{why}. Name it by its position, which is found at once")
    if missing:
        raise Problem("not-found", f"there is no dead letter {quoted(missing[0])}: retention may have taken it")
    return letters, found


async def _filter(call: Call, selection: dict[str, Any]) -> LetterFilter:
    topic = selection.get("topic")
    call.check_topic(topic, "see dead letters of")
    queue = None
    if selection.get("queue") is not None:
        name = selection["queue"]
        queue = await _visible(call, name, call.console.cluster.queue_topics(name))
    return LetterFilter(
        codes=tuple(selection.get("codes") or ()),
        topic=topic,
        since_s=selection.get("since"),
        until_s=selection.get("until"),
        queue=queue,
        contains=selection.get("contains") or "",
    )


async def _visible(call: Call, name: str, asking: Awaitable[_Queue]) -> _Queue:
    """What is known of a queue, which must exist, and whose topic the user may see."""
    try:
        found = await asking
    except QueueError as error:
        raise Problem("not-found", str(error)) from None
    if not call.user.may_use_topic(found.topic):
        raise Problem("topic-forbidden", f"you may not see the queue {quoted(name)}")
    return found


def _missing(found: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"partition": partition, "reason": why} for partition, why in sorted(found.items())]


def _shown(letter: Letter, found: FoundLetters, *, with_request: bool = False) -> dict[str, Any]:
    fields = letter.fields(found.marks.get(letter.mark_key), with_request=with_request)
    fields["retry_known"] = letter.position not in found.unsure
    # The sentence of a dead letter may repeat a part of the request: never more than its error shows.
    return {**fields, "written_at": letter.written_at, "message": re.sub(r"[\x00-\x1f]", " ", fields["message"])}


@handles("listQueues")
async def list_queues(call: Call) -> Reply:
    found = await call.console.cluster.queues()
    visible = [stats for stats in found.stats if call.user.may_use_topic(stats.topic)]
    # The reasons name topics, so a user who may not see all topics sees none of them.
    missing = found.missing if call.user.topics is None else {}
    return Reply(
        {
            "queues": [{k: v for k, v in asdict(stats).items() if k != "partitions"} for stats in visible],
            "missing": [{"queue": name, "reason": why} for name, why in missing.items()],
        }
    )


@handles("getQueue")
async def get_queue(call: Call) -> Reply:
    name = call.parameters["name"]
    stats = await _visible(call, name, call.console.cluster.queue(name, call.parameters.get("topic")))
    return Reply(asdict(stats))
