"""The handler of ``/v1/events``: firings as server-sent events, while they happen."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from time import monotonic
from typing import Any

from aiohttp import web

from timers.console.call import Call, handles
from timers.console.problems import Problem
from timers.console.routes import EVENT_STREAM
from timers.console.topics_follower import MAX_STREAM_PARTITIONS, TopicsFollower
from timers.errors import TimersError
from timers.offline.fired import CallbackRecord

MAX_STREAMS = 32
MAX_STREAMS_OF_A_USER = 8
CHECK_S = 10.0
"""After this time the login is checked, and a comment is sent."""

STALLED_S = 10.0
"""A client that does not take a piece of an event in this time is disconnected: it would keep a place for a stream."""

_PIECE_BYTES = 64 * 1024

MAX_STREAM_S = 3600.0
"""Then the stream ends; the browser connects again, with the id of the last event."""

WINDOW_S = 1.0
"""With `per_s`, the number and the longest lag of the firings that were not sent are told once in this time."""

LOOK_S = 0.5
"""Time between two looks whether the client is gone, which would keep a place for a stream."""

RETRY_MS = 1000
"""Browsers connect again after this time, when a console ends."""


@handles("events")
async def events(call: Call) -> web.StreamResponse:
    streams = call.console.streams
    if streams.total() >= MAX_STREAMS or streams[call.user.name] >= MAX_STREAMS_OF_A_USER:
        raise Problem("busy", "too many streams are open: close one", {"Retry-After": "10"})
    streams[call.user.name] += 1
    try:
        return await _Stream(call).run()
    finally:
        streams[call.user.name] -= 1


class Thinning:
    """Chooses which firings are sent, if a reader wants only some of them in a second.

    Attributes:
        skipped: number of those that were not sent since the last time this was told.
    """

    def __init__(self, per_s: int | None) -> None:
        self._per_s = per_s
        self._since_s = 0.0
        self._sent = 0
        self._worst_ms = 0
        self.skipped = 0

    def takes(self, lag_ms: int, now_s: float) -> bool:
        """Whether a firing is sent."""
        if self._per_s is None:
            return True
        if now_s - self._since_s >= WINDOW_S and not self.skipped:
            self._since_s, self._sent = now_s, 0
        if self._sent < self._per_s:
            self._sent += 1
            return True
        self.skipped += 1
        self._worst_ms = max(self._worst_ms, lag_ms)
        return False

    def told(self, now_s: float) -> dict[str, int]:
        """Number and longest lag of those that were not sent; empty if it is too early, or if there are none."""
        if not self.skipped or now_s - self._since_s < WINDOW_S:
            return {}
        told = {"count": self.skipped, "worst_ms": self._worst_ms}
        self._since_s, self._sent, self.skipped, self._worst_ms = now_s, 0, 0, 0
        return told


class _Stream:
    def __init__(self, call: Call) -> None:
        self._call = call
        self._topics = sorted(set(call.parameters["topic"]))
        self._thinning = Thinning(call.parameters.get("per_s"))
        self._shows_values = call.user.values and call.console.settings.queries == "values"
        self._response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._response.content_type = EVENT_STREAM
        self._checked_s = 0.0

    async def run(self) -> web.StreamResponse:
        """Send events until the client goes, its login ends, or an hour is over."""
        for topic in self._topics:
            if not self._call.user.may_use_topic(topic) or topic in self._call.console.settings.own_topics:
                raise Problem("topic-forbidden", f"you may not see callbacks of topic {topic!r}")
        last_id = self._call.request.headers.get("Last-Event-ID") or self._call.parameters.get("after")
        follower = await self._call.console.cluster.follow(self._topics, last_id and _parse_id(last_id))
        try:
            with suppress(ConnectionError):  # the client is gone
                await self._response.prepare(self._call.request)
                # The id at the beginning: a stream that breaks before its first event would else lose what came since.
                await self._write(b"retry: %d\n" % RETRY_MS + _event("began", {}, self._id(follower)))
                try:
                    await self._send_until_end(follower)
                except (Problem, TimersError) as error:
                    await self._write(_event("ended", {"reason": str(error)}))
        finally:
            await follower.close()
        return self._response

    async def _send_until_end(self, follower: TopicsFollower) -> None:
        self._checked_s = begun_s = monotonic()
        while monotonic() - begun_s < MAX_STREAM_S and self._call.request.transport is not None:
            records, dropped = await follower.next(LOOK_S)
            if dropped:
                await self._write(_event("dropped", {"count": dropped}))
            for record in records:
                await self._check_from_time_to_time()  # a slow client may take long for one batch
                await self._send(follower, record)
            if told := self._thinning.told(monotonic()):
                await self._write(_event("skipped", told, self._id(follower)))
            await self._check_from_time_to_time()

    async def _check_from_time_to_time(self) -> None:
        """See whether the login still allows what the stream shows, and tell the client that the stream goes on."""
        if monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = monotonic()
        user = await self._call.console.access.principal(self._call.request)
        if not all(map(user.may_use_topic, self._topics)) or user.name != self._call.user.name:
            raise Problem("topic-forbidden", "the rights of this user have changed")
        self._shows_values = self._shows_values and user.values
        await self._write(b": still here\n\n")

    async def _write(self, data: bytes) -> None:
        """Write in pieces, so that a client that takes one of them in time is only slow.

        Raises:
            ConnectionError: the client is gone, or is disconnected because it takes nothing.
        """
        for begin in range(0, len(data), _PIECE_BYTES):
            try:
                async with asyncio.timeout(STALLED_S):
                    await self._response.write(data[begin : begin + _PIECE_BYTES])
            except TimeoutError:
                transport = self._call.request.transport
                if transport is not None:
                    transport.abort()
                raise ConnectionAbortedError(f"the client has taken nothing for {STALLED_S:.0f} s") from None

    async def _send(self, follower: TopicsFollower, record: CallbackRecord) -> None:
        number = self._topics.index(record.topic)
        follower.positions[number][record.partition] = record.offset + 1
        if record.due_s is None:  # another record on the topic, which is not ours to show
            return
        if not self._thinning.takes(record.lag_ms or 0, monotonic()):
            return
        fields = record.fields()
        if not self._shows_values:
            del fields["value"]
            fields["headers"] = [name for name, _ in record.headers]
        fields["value_bytes"] = len(record.value or b"")
        await self._write(_event("fired", fields, self._id(follower)))

    def _id(self, follower: TopicsFollower) -> str:
        return ";".join(",".join(map(str, offsets)) for offsets in follower.positions)


def _parse_id(text: str) -> list[list[int]]:
    """The offsets from which a stream goes on: a list for each topic, in the order of their names."""
    offsets = r"[0-9]{1,18}(,[0-9]{1,18})*"
    if len(text) > MAX_STREAM_PARTITIONS * 20 or not re.fullmatch(rf"{offsets}(;{offsets})*", text, re.ASCII):
        raise Problem("cursor-invalid", "Last-Event-ID is not the id of an event of this stream")
    return [[int(offset) for offset in part.split(",")] for part in text.split(";")]


def _event(kind: str, fields: dict[str, Any], id: str = "") -> bytes:
    first = f"id: {id}\n" if id else ""
    return f"{first}event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
