"""Asks other workers over HTTP about the partitions that they own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from timers.asking import read_answer
from timers.core.keys import OrderKey
from timers.core.listing import Listed, NoAnswer, Page, Position
from timers.core.timer import TopicPartition
from timers.wire import foreign_json, topics
from timers.wire import query as wire
from timers.wire.query import CountQuery, Query, Timer
from timers.worker.consumer.group import Member
from timers.worker.queries.partition_sources import Counts, Lookup

_WRONG = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading an answer may raise that no worker wrote."""

ANSWER_S = 8.0
"""Longer than a worker takes for an answer; see :mod:`timers.worker.queries.answers`."""


class RemoteSource:
    """The partitions of another worker.

    Args:
        session: HTTP session of this worker.
        sign: returns the headers that sign a question, given its path with parameters.
        member: the other worker.
        partitions: those to ask about; answers about others are ignored.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        sign: Callable[[str], Mapping[str, str]],
        member: Member,
        partitions: set[TopicPartition],
    ) -> None:
        self._session = session
        self._sign = sign
        self._member = member
        self.partitions = partitions
        self.missing: dict[TopicPartition, str] = {}

    async def page(self, query: Query, after: Position, limit: int) -> Page:
        """The next timers."""
        asked = query._replace(limit=limit, after=after if after[1] else query.after)
        answer = await self._get(wire.LIST_PATH, wire.parameters_of(asked), quick=query.is_quick)
        try:
            listed = [Listed(wire.position_of(timer), timer) for timer in answer["timers"]]
            through = None if answer["next"] is None else wire.parse_cursor(answer["next"])
        except _WRONG:
            raise self._not_a_worker() from None
        return Page([each for each in listed if each.position[1:3] in self.partitions], through)

    async def count(self, query: CountQuery, tp: TopicPartition, after: OrderKey) -> Counts:
        """Count the next timers of one partition."""
        alone = RemoteSource(self._session, self._sign, self._member, {tp})
        asked = query._replace(after=(after[0], *tp, after[1]), partition=tp)
        try:
            answer = await alone._get(wire.COUNT_PATH, wire.parameters_of_count(asked), quick=query.is_quick)
            counts = Counter(
                {(int(each["from"]), str(each["topic"])): int(each["timers"]) for each in answer["timers"]}
            )
            through = None if answer["next"] is None else wire.parse_cursor(answer["next"])
        except _WRONG:
            raise self._not_a_worker() from None
        self.missing |= alone.missing
        return counts, through and (through[0], through[3])

    async def find(self, lookup: Lookup) -> list[Timer]:
        """The timer, if it exists."""
        answer = await self._get(wire.FIND_PATH, {"id": lookup.id, "value": str(int(lookup.with_value))})
        try:
            named: list[tuple[Timer, Any]] = [
                (timer, topics.parse_source(timer["source"])) for timer in answer["timers"]
            ]
        except _WRONG:
            raise self._not_a_worker() from None
        return [timer for timer, where in named if where is not None and where[:2] in self.partitions]

    async def _get(self, path: str, parameters: Mapping[str, str], *, quick: bool = False) -> Any:
        try:
            asked = f"{path}?{urlencode(parameters, errors='surrogateescape')}"
            url = URL(self._member.url).join(URL(asked, encoded=True))
            forwarded = wire.FORWARDED_QUICK if quick else "1"
            headers = {wire.FORWARDED: forwarded, **self._sign(url.raw_path_qs)}
            async with (
                asyncio.timeout(ANSWER_S),
                self._session.get(url, headers=headers, allow_redirects=False) as response,
            ):
                body = await read_answer(response.content)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            why = str(error) or f"no answer within {ANSWER_S:.0f} s"
            raise NoAnswer(f"worker {self._member.worker_id} does not answer at {self._member.url}: {why}") from None
        try:
            answer = foreign_json.decode(body)
            if response.status not in (200, 404):
                raise NoAnswer(f"worker {self._member.worker_id} answered: {answer['error']}")
            answered = set(answer["partitions"])
            reasons = {each["partition"]: each["reason"] for each in answer["missing"]}
        except _WRONG:
            raise self._not_a_worker() from None
        for tp in self.partitions:
            name = topics.partition_name(*tp)
            if name not in answered:
                self.missing[tp] = reasons.get(name, f"worker {self._member.worker_id} does not own it any more")
        return answer

    def _not_a_worker(self) -> NoAnswer:
        return NoAnswer(f"the server at {self._member.url} is not a timers worker")
