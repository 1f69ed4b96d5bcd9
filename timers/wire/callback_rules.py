"""Decides which callbacks the settings allow: when a timer fires, not when it is accepted, as settings change [I4]."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Protocol

from timers.core.delivery import DeliveryProblem
from timers.core.timer import Row, key_bytes
from timers.wire import headers as h
from timers.wire import topics
from timers.wire.checks import InvalidRequestError, decode_due
from timers.wire.future import callback_topic


class RuleSettings(Protocol):
    """The settings that the rules depend on."""

    @property
    def request_topic(self) -> str: ...
    @property
    def canary_topic(self) -> str: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def own_topics(self) -> Iterable[str]: ...
    @property
    def callback_allow(self) -> str: ...
    @property
    def callback_deny(self) -> str: ...


class CallbackRules:
    """Implements :class:`timers.core.delivery.Rules` by ``TIMERS_CALLBACK_ALLOW`` and ``TIMERS_CALLBACK_DENY``.

    * The canary topic is always allowed: workers of this app request its timers.
    * A topic that is in both lists is denied.
    * The engine's other topics are denied. Exception: the request topic, if its full name is in the list of allowed
      topics. Then a timer may set another timer.
    * A topic with a name that only workers, queues, consoles or Kafka write (:data:`timers.wire.topics.WORKERS_ONLY`),
      of any app, is allowed only if its full name is in the list of allowed topics. A pattern does not count.
    * Any other topic is allowed if a pattern allows it, or if the list of allowed topics is empty.
    """

    def __init__(self, settings: RuleSettings) -> None:
        self._request_topic = settings.request_topic
        self._canary_topic = settings.canary_topic
        self._max_depth = settings.max_depth
        self._own_topics = frozenset(settings.own_topics)
        self._workers_only = _patterns(topics.WORKERS_ONLY)
        self._allow = _patterns(settings.callback_allow.split(","))
        self._deny = _patterns(settings.callback_deny.split(","))

    def check_topic(self, topic: str) -> DeliveryProblem | None:
        if topic == self._canary_topic:
            return None
        for text, pattern in self._deny.items():
            if pattern.fullmatch(topic):
                return DeliveryProblem.denied(f"callBackTopic {topic!r} is denied by {text!r} of TIMERS_CALLBACK_DENY")
        if topic in self._own_topics:
            if topic == self._request_topic and topic in self._allow:
                return None
            return DeliveryProblem.denied(f"callBackTopic {topic!r} is internal: callbacks may not go there")
        if topic in self._allow:
            return None
        internal = next((text for text, pattern in self._workers_only.items() if pattern.fullmatch(topic)), None)
        if internal is not None:
            return DeliveryProblem.denied(
                f"callBackTopic {topic!r} is internal, as all names of the form {internal!r} are: only its full name "
                f"in TIMERS_CALLBACK_ALLOW allows it. '*,{topic}' allows it beside all others"
            )
        if self._allow and not any(pattern.fullmatch(topic) for pattern in self._allow.values()):
            return DeliveryProblem.denied(f"callBackTopic {topic!r} is not among those of TIMERS_CALLBACK_ALLOW")
        return None

    def next_request(self, row: Row, due_s: int) -> Row | DeliveryProblem:
        """Return the row of a timer whose callback is a request, with the headers that a request needs.

        It compares the two due seconds, and not the time of firing. So an outage does not end a chain of timers.
        """
        _, _, key, value, headers, _ = row
        try:
            next_due_s = decode_due(key_bytes(key) or b"")
        except InvalidRequestError as error:
            return DeliveryProblem.denied(f"the callback is itself a request, but its {error}")
        if next_due_s <= due_s:
            order = f"due at {next_due_s}, which is not after {due_s}"
            return DeliveryProblem.denied(f"the callback is itself a request, {order}")
        depth = h.depth(headers or ())
        if depth >= self._max_depth:
            limit = f"TIMERS_MAX_DEPTH={self._max_depth} allows no more"
            return DeliveryProblem.denied(f"{depth} timers have set each other, and {limit}")
        kept = [header for header in headers or () if header[0] != h.DEPTH]
        if callback_topic(value) == self._request_topic:  # other receivers may copy headers to their requests
            kept.append((h.DEPTH, b"%d" % (depth + 1)))
        return (*row[:4], kept or None, row[5])


def _patterns(texts: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """Return pattern -> regular expression; ``*`` is any characters. Those of ``fnmatch`` do not backtrack."""
    return {pattern: re.compile(fnmatch.translate(pattern)) for pattern in texts if pattern}
