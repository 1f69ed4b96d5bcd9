"""Format and filters of the worker's log: text or JSON, and errors that are expected without their traceback.

They are added to the handlers that Faust has set up, so Faust's ``--loglevel`` and ``--logfile`` still apply.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial

from aiokafka.errors import KafkaError

from timers.errors import TimersError
from timers.process.config.settings import Settings
from timers.process.logs import JsonFormatter, make_safe

JSON = "json"


def is_news(fatal: Callable[[], TimersError | None], record: logging.LogRecord) -> bool:
    """A filter that drops libraries' tracebacks of a :class:`TimersError`: the worker logs it once, as one sentence.

    Args:
        fatal: returns the error that ends the worker, if there is one.
    """
    if record.exc_info and timers_error_in(record.exc_info[1]) is not None:
        return False
    return not (fatal() and "We experienced a crash" in str(record.msg))


def shorten_kafka_error(record: logging.LogRecord) -> bool:
    """A filter that replaces the traceback of a Kafka error that aiokafka logs by the error: a broker that is away is
    nothing unforeseen, and what the worker does about it is in its own lines."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, KafkaError) and record.name.partition(".")[0] == "aiokafka":
        record.msg, record.args = f"{record.getMessage()}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def is_not_of_a_part(record: logging.LogRecord) -> bool:
    """A filter that drops what libraries say of their own parts at each start and stop, if the level is not DEBUG: 25
    lines between those that tell something."""
    if record.levelno != logging.INFO or logging.root.level <= logging.DEBUG:
        return True
    text = record.getMessage()
    library = record.name.partition(".")[0] in ("aiokafka", "kafka")
    return not (_OF_A_PART.match(text) or (library and text.startswith(("Discovered coord", "Updating subscribed"))))


_OF_A_PART = re.compile(r"\[\^-+.*\]: (Starting|Stopping)\.\.\.|\[\^-+.*\]: Shutdown complete!")
"""Services have such names, with a minus for each service above. The worker itself, ``[^TimersWorker]``, has none."""


def timers_error_in(error: BaseException | None) -> TimersError | None:
    """The first :class:`TimersError` among ``error`` and its causes; None if there is none."""
    seen: set[int] = set()  # the contexts of exceptions can form a cycle
    while error is not None and id(error) not in seen:
        if isinstance(error, TimersError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def set_up(settings: Settings, fatal: Callable[[], TimersError | None]) -> None:
    """Set format and filters of the root logger's handlers."""
    for handler in logging.root.handlers:
        handler.addFilter(partial(is_news, fatal))
        make_safe([handler])
        handler.addFilter(shorten_kafka_error)
        handler.addFilter(is_not_of_a_part)
        if settings.log_format == JSON:
            handler.setFormatter(JsonFormatter(app=settings.app_id, worker=settings.worker_id))
