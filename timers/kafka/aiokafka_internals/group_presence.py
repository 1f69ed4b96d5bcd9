"""Takes part in a group that deals nothing, so that other processes see that this one runs.

The engine on Spark is in such a group: workers that start look there, and wait until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Self

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from timers.config.settings import Settings
from timers.kafka import connection
from timers.kafka.aiokafka_internals.group_member import LEAVE_TIMEOUT_S, RETRY_S, GroupMember, Timing
from timers.threads import LoopThread


class Presence:
    """Is in a group from its start to its end. Nothing waits for the group.

    A killed process is a member until its session has timed out. Each start has a name of its own: a process whose
    start is refused later must not take the place of the one that runs.

    Args:
        on_refused: gets the reason if this user may not join.
    """

    def __init__(self, settings: Settings, group: str, on_refused: Callable[[BaseException], None]) -> None:
        self._settings = settings
        self._group = group
        self._on_refused = on_refused
        self._thread = LoopThread(f"member-of-{group}")

    def __enter__(self) -> Self:
        self._thread.submit(self._start()).result()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(TimeoutError):
            self._thread.submit(self._end()).result(2 * LEAVE_TIMEOUT_S)
        self._thread.close()

    async def _start(self) -> None:
        self._client = client = AIOKafkaClient(**connection.aiokafka(self._settings))
        self._member = GroupMember(
            client,
            self._group,
            f"{self._group}-{secrets.token_hex(8)}",
            (),
            Timing.of(self._settings.session_timeout_s),
            dict,
            lambda joined, _: {each: [] for each in joined},
            lambda _: None,
            self._on_refused,
            lambda: True,
        )
        self._taking_part = asyncio.create_task(self._take_part())

    async def _take_part(self) -> None:
        while True:
            try:
                await self._client.bootstrap()
                break
            except KafkaError:
                await asyncio.sleep(RETRY_S)
        await self._member.run()

    async def _end(self) -> None:
        self._taking_part.cancel()
        await asyncio.wait({self._taking_part})
        await self._member.leave()
        await self._client.close()
