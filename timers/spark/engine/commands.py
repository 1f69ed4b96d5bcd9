"""Reads what operators want of callback topics, for the machines of an engine on Spark: the driver tells the tasks."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import TimeoutError as NotYet
from typing import Self

from aiokafka.errors import KafkaError

from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.leader_client import LeaderClient
from timers.kafka.targets_log import TARGETS_ANSWER_S, TARGETS_LOOK_S, TARGETS_START_WAIT_S, TargetsReader
from timers.process.config.settings import Settings
from timers.spark.engine.machines import Openings
from timers.wire.targets import Targets

logger = logging.getLogger(__name__)


class Commands:
    """Gives the newest commands to the machines of the driver, and to those of each micro-batch (:class:`Openings`)."""

    def __init__(self, settings: Settings, openings: Openings) -> None:
        self._topic = settings.targets_topic
        self._openings = openings
        self._client = LeaderClient(arguments(settings, "targets"), TARGETS_ANSWER_S)
        self._reader = TargetsReader(self._client, self._topic)
        self._stop = threading.Event()
        self._read = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="timers-targets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._read.wait(TARGETS_START_WAIT_S):
            logger.warning(
                "topic %s was not read within %.0f s; timers fire all the same", self._topic, TARGETS_START_WAIT_S
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * TARGETS_ANSWER_S)

    def _serve(self) -> None:
        submit, known, failing = self._openings.parts.producers.submit, Targets({}, {}), False
        while not self._stop.is_set():
            look = submit(self._reader.look(TARGETS_LOOK_S if self._read.is_set() else 0.0))
            try:
                found, why = look.result(2 * TARGETS_ANSWER_S), "it has no leader"
            except Exception as error:  # any error: timers still fire, and held timers stay held
                look.cancel()
                found, why = None, repr(error)
                if not isinstance(error, (KafkaError, OSError, ValueError, NotYet)) and not failing:
                    logger.exception("topic %s cannot be read: an exception that no code expects", self._topic)
            if found is not None:
                for name, damage in found.unreadable.items() if found.unreadable != known.unreadable else ():
                    logger.error("the record of %r in topic %s cannot be read: %s", name, self._topic, damage)
                known = found
                self._openings.commands = found.commands
                self._read.set()
            elif not failing:
                logger.warning("topic %s cannot be read now (%s); what is held stays held", self._topic, why)
            failing = found is None
            self._stop.wait(TARGETS_LOOK_S if failing else 0.05)
        submit(self._client.close()).result(TARGETS_ANSWER_S)
