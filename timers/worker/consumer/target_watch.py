"""Reads what operators want of callback topics, gives it to the machines, and says what is wrong with it.

A machine keeps what it took: progress has it. So timers that are not held fire, and held ones stay held, whatever
happens to the topic of targets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any

from aiokafka.errors import KafkaError
from mode import Service

from timers.core.fired import Command, is_over
from timers.core.levels import HOLDS_LEVEL
from timers.core.progress import Progress
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.targets_log import TARGETS_ANSWER_S, TARGETS_LOOK_S, TARGETS_START_WAIT_S, TargetsReader
from timers.process.config.settings import Settings
from timers.process.counted import duration
from timers.wire.targets import Targets
from timers.wire.topics import partition_name
from timers.worker.machines.pool import Pool

logger = logging.getLogger(__name__)

DIFFERS_S = 10.0
"""After this long without the topic, or in which a machine holds something else than it says, it is shown as red."""

BEHIND_S = 2
"""A machine that is so many seconds behind takes the end of a pause later, when nothing is due."""


class TargetWatch(Service):
    """Reads the topic of targets, for the machines of a pool."""

    def __init__(self, settings: Settings, pool: Pool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._topic = settings.targets_topic
        self._pool = pool
        self._client = LeaderClient(arguments(settings, "targets"), TARGETS_ANSWER_S)
        self._reader = TargetsReader(self._client, self._topic)
        self._read = asyncio.Event()
        self._targets = Targets({}, {})
        self._unread_since: float | None = None
        self._since: dict[str, float] = {}
        """What is wrong now -> since when."""
        self._wrong: tuple[tuple[str, str, float], ...] = ()
        """(Partition or topic, sentence, since when) of each."""

    async def wait_until_read(self) -> None:
        """Wait until the topic was read to its end, for :data:`TARGETS_START_WAIT_S` at most."""
        try:
            async with asyncio.timeout(TARGETS_START_WAIT_S):
                await self._read.wait()
        except TimeoutError:
            logger.warning(
                "topic %s was not read within %.0f s; timers fire all the same", self._topic, TARGETS_START_WAIT_S
            )

    @property
    def problems(self) -> Mapping[str, str]:
        """Partition or topic -> what is wrong, in sentences. Any thread."""
        found: dict[str, str] = {}
        for name, why, since in self._wrong:
            if monotonic() - since >= DIFFERS_S:
                found[name] = f"{found[name]}; {why}" if name in found else why
        return found

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            began_at = monotonic()
            try:
                found = await self._reader.look(TARGETS_LOOK_S if self._read.is_set() else 0.0)
                why = "" if found is not None else "it has no leader"
            except (KafkaError, OSError, ValueError) as error:
                found, why = None, repr(error)
            if self.should_stop:  # the end of the connection is no failure
                return
            self._note(found, why)
            # A request that waited for a record has taken the time; one that failed must not be repeated at once.
            await self.sleep(max(0.05, TARGETS_LOOK_S - (monotonic() - began_at)) if why else 0.05)

    def _note(self, found: Targets | None, why: str) -> None:
        now = monotonic()
        if found is None:
            if self._unread_since is None:
                logger.warning("topic %s cannot be read now (%s); trying again", self._topic, why)
            self._unread_since = self._unread_since or now
        else:
            self._unread_since = None
            if found != self._targets or not self._read.is_set():
                self._targets = found
                self._pool.command(found.commands)
                self._read.set()
        wrong = dict(self._found_wrong(why))
        self._since = {key: self._since.get(key, now) for key in wrong}
        self._wrong = tuple((name, sentence, self._since[key]) for key, (name, sentence) in wrong.items())

    def _found_wrong(self, why: str) -> Iterator[tuple[str, tuple[str, str]]]:
        """What is wrong: a key of it, (partition or topic, sentence)."""
        topic = self._topic
        if self._unread_since is not None:
            text = (
                f"topic {topic!r} cannot be read ({why}): new commands about callback topics are not taken; what is "
                "held stays held, and all others fire (docs/operations.md#the-topic-of-targets)"
            )
            yield "unread", (topic, text)
            return
        for name, damage in self._targets.unreadable.items():
            text = (
                f"the record of {name!r} in topic {topic!r} cannot be read: {damage}. What machines have taken before "
                f"holds. Give the command again: timers targets pause {name}, or timers targets resume {name}"
            )
            yield f"unreadable {name}", (topic, text)
        for tp, runner in self._pool.runners.items():
            machine = runner.machine
            if machine.progress.level >= HOLDS_LEVEL and not (machine.recovering or machine.rescue_count):
                name = partition_name(*tp)
                for target, text in self._differences(machine.progress):
                    yield f"{name} {target}", (name, text)

    def _differences(self, progress: Progress) -> Iterator[tuple[str, str]]:
        """Targets that a machine treats in another way than the topic says -> a sentence."""
        known, fired_s = self._targets.known, progress.fired_through[0]
        now_s = self._pool.tick_s or fired_s
        asked = (name for name, each in known.items() if each.command.is_paused)
        for target in sorted({*asked, *(hold.target for hold in progress.holds if hold.is_paused)}):
            if target in self._targets.unreadable:
                continue
            command = known[target].command if target in known else None
            held = next((hold for hold in progress.holds.by_target.get(target, ()) if hold.is_paused), None)
            if held is not None and (command is None or command.number < held.number):
                lost = Command(held.number, target, True, held.until_s, held.over_s)
                text = (
                    f"{target!r} is paused by command {held.number}, which is only in the progress of a partition, "
                    f"and not in topic {self._topic!r}: it has lost its newest records, or was made anew. Give the "
                    f"command again: timers targets {_name(lost, now_s)}, or timers targets resume {target}"
                )
                yield target, text
            elif command is not None and is_wanted(command, fired_s) != (held is not None):
                if held is not None and fired_s < (self._pool.tick_s or 0) - BEHIND_S:
                    continue
                name = _name(command, now_s)
                text = (
                    f"command {command.number}, {name}, was not taken for {DIFFERS_S:.0f} s. Give it again: "
                    f"timers targets {name}"
                )
                yield target, text

    async def on_stop(self) -> None:
        """Disconnect."""
        await self._client.close()


def is_wanted(command: Command, fired_s: int) -> bool:
    """Whether a machine that has fired up to a second holds the timers of a target."""
    return command.is_paused and not is_over(command.until_s, fired_s)


def _name(command: Command, now_s: int) -> str:
    """What gives a command once more: a pause that has an end ends in the same second."""
    left_s = command.until_s - now_s
    over = f" --over {duration(command.over_s)}" if command.over_s else ""
    if not command.is_paused or (command.until_s and left_s <= 0):
        return f"resume {command.target}{over}"
    return f"pause {command.target} --for {duration(left_s)}{over}" if command.until_s else f"pause {command.target}"
