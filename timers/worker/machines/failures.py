"""What a failure of a machine means: for how long its partition stays closed, and why."""

from __future__ import annotations

import logging
import traceback
from time import monotonic

from confluent_kafka import KafkaException

from timers.core.backoff import AFTER_LOST, AFTER_UNFORESEEN, Reopening
from timers.core.ports import Lost, TooMuch
from timers.errors import TimersError
from timers.machines.life import BROKERS, LIMITS, STORE, UNFORESEEN, Waiting
from timers.machines.store.failures import StoreDamaged, StoreWaits
from timers.worker.machines.capacity import NoRoom

logger = logging.getLogger(__name__)


class Failures:
    """The failures of one partition, for as long as this worker owns it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._reopening = Reopening()
        self._logged = ""

    def judge(self, error: BaseException) -> tuple[float, Waiting]:
        """Note a failure, and log it if it is new.

        Returns:
            Seconds to wait before the machine is opened again, and the reason.

        Raises:
            TimersError: ``error``, if it must end the worker.
        """
        if isinstance(error, TimersError):
            raise error
        if isinstance(error, StoreDamaged):
            pause_s, reason, sentence = error.pause_s, STORE, str(error)
        elif isinstance(error, (Lost, KafkaException)):
            # The next transaction has fewer timers: it need not wait.
            reason, sentence = _reason(error), _text(error)
            pause_s = 0.0 if isinstance(error, TooMuch) else self._reopening.pause_s(reason, AFTER_LOST, monotonic())
        else:
            return self._judge_unforeseen(error)
        line = f"{self._name}: {sentence}; opening it again{' until it succeeds' if pause_s else ''}"
        if line != self._logged or not pause_s:
            logger.warning("%s", line)
        self._logged = line
        return pause_s, Waiting(reason, sentence)

    def _judge_unforeseen(self, error: BaseException) -> tuple[float, Waiting]:
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{place[0].filename}:{place[0].lineno}" if place else "an unknown place"
        pause_s = self._reopening.pause_s(f"{type(error).__qualname__} at {where}", AFTER_UNFORESEEN, monotonic())
        what = f"failed with an exception that no code expects ({error!r} at {where})"
        if not pause_s:
            logger.error("%s %s; opening it again", self._name, what, exc_info=error)
        else:
            logger.error("%s %s again; this partition alone stops for %.0f s", self._name, what, pause_s)
        return pause_s, Waiting(
            UNFORESEEN,
            f"{what} again and again: its timers wait, and no record is skipped; the worker's log has the traceback",
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, NoRoom):
        return LIMITS
    return STORE if isinstance(error, StoreWaits) else BROKERS


def _text(error: BaseException) -> str:
    """The sentence of an error; of librdkafka's, its text without the other fields."""
    if isinstance(error, KafkaException) and error.args:
        return f"the brokers did not answer or refused ({error.args[0].str()})"
    return str(error)
