"""Where callbacks may go. Judged when a timer fires, never when it is accepted: settings may change in between."""

from __future__ import annotations

import fnmatch
import re

from timers.config.settings import Settings
from timers.core.timer import Row, key_bytes
from timers.wire import headers as h
from timers.wire.checks import InvalidRequestError, decode_due
from timers.wire.future import topic_asked_for

INTERNAL = "__"
"""Kafka's own topics begin so, and those of many tools."""


class CallbackRules:
    """``TIMERS_CALLBACK_ALLOW`` and ``TIMERS_CALLBACK_DENY``, and what holds whatever they say.

    * Canary timers call back, whatever is said: they are the engine's own, and another worker may have sent them.
    * A denied topic is denied, also if it is allowed too.
    * The engine's other topics are never targets, but for the request topic: where that is allowed by its full name, a
      timer may set another timer.
    * A topic that begins with ``__`` is a target only where a pattern that begins so allows it.
    * Any other is a target if a pattern allows it, or if no list of allowed ones is given.
    """

    def __init__(self, settings: Settings) -> None:
        self._request_topic = settings.request_topic
        self._canary_topic = settings.canary_topic
        self._max_depth = settings.max_depth
        self._own = frozenset(settings.own_topics)
        self._allow = _patterns(settings.callback_allow)
        self._deny = _patterns(settings.callback_deny)

    def denied(self, topic: str) -> str | None:
        """Why a callback may not go to ``topic``, in one sentence; None if it may."""
        if topic == self._canary_topic:
            return None
        for text, pattern in self._deny.items():
            if pattern.fullmatch(topic):
                return f"callBackTopic {topic!r} is denied by {text!r} of TIMERS_CALLBACK_DENY"
        if topic in self._own:
            if topic == self._request_topic and topic in self._allow:
                return None
            return f"callBackTopic {topic!r} is internal: callbacks may not go there"
        allowing = [text for text, pattern in self._allow.items() if pattern.fullmatch(topic)]
        if topic.startswith(INTERNAL) and not any(text.startswith(INTERNAL) for text in allowing):
            return f"callBackTopic {topic!r} is internal: callbacks may not go there"
        if self._allow and not allowing:
            return f"callBackTopic {topic!r} is not among those of TIMERS_CALLBACK_ALLOW"
        return None

    def next_request(self, row: Row, due_s: int) -> Row:
        """A timer whose callback is itself a request, with the headers that go with that.

        What is compared is in the log, not the time of firing: a chain comes through an outage of any length.

        Args:
            row: the timer; its callback goes to the request topic.
            due_s: for when it was asked.

        Raises:
            InvalidRequestError: it may not set another timer; ``topic-denied``.
        """
        _, _, key, value, headers, _ = row
        try:
            next_s = decode_due(key_bytes(key) or b"")
        except InvalidRequestError as error:
            raise _denied(f"the callback is itself a request, but its {error}") from None
        if next_s <= due_s:
            raise _denied(f"the callback is itself a request, due at {next_s}, which does not lie ahead of {due_s}")
        depth = h.depth(headers or ())
        if depth >= self._max_depth:
            raise _denied(f"{depth} timers have set each other, and TIMERS_MAX_DEPTH={self._max_depth} allows no more")
        kept = [header for header in headers or () if header[0] != h.DEPTH]
        if topic_asked_for(value) == self._request_topic:  # only then need it know: so receivers do not copy our count
            kept.append((h.DEPTH, b"%d" % (depth + 1)))
        return (*row[:4], kept or None, row[5])


def _denied(reason: str) -> InvalidRequestError:
    return InvalidRequestError("topic-denied", reason)


def _patterns(text: str) -> dict[str, re.Pattern[str]]:
    """Each pattern of a list; ``*`` stands for any characters. Python's own way: no name makes it try everything."""
    return {each: re.compile(fnmatch.translate(each)) for each in text.split(",") if each}
