"""Topic names: which are legal, and the names derived from the app id."""

import re

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule (``org.apache.kafka.common.internals.Topic``), less the two names it also refuses: ``.`` and ``..``."""

REQUEST = "timer-request"
ID_REQUEST = "timer-request-by-id"
VERDICT = "timer-verdict"
OSCILLATOR = "oscillator"
DEAD_LETTER = "timer-dead-letter"
COLD = "timer-cold"


def is_legal(topic: str) -> bool:
    """Whether Kafka would accept ``topic`` as a name."""
    return LEGAL_TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def progress(app_id: str) -> str:
    """The compacted topic that holds how far each machine of this app has come."""
    return f"{app_id}-progress"


def retry(app_id: str) -> str:
    """The internal topic for timers whose target failed; one for each app, since only that app may fire them."""
    return f"{app_id}-timer-retry"


def canary(app_id: str) -> str:
    """Where the canary timers of this app's workers call back."""
    return f"{app_id}-canary"


def retried(app_id: str) -> str:
    """The compacted topic that holds which dead letters' requests were published again. Made by the first such call."""
    return f"{app_id}-dead-letters-retried"


def transactional_id(app_id: str, topic: str, partition: int) -> str:
    """Transactional id of one machine. It is what fences a former owner, so it must never be set by hand [I12]."""
    return f"{app_id}-{topic}-{partition}"


def retrier_id(app_id: str) -> str:
    """Transactional id of whoever publishes requests of dead letters again: a second one fences the first."""
    return f"{app_id}-dead-letters"


def source(topic: str, partition: int, offset: int) -> str:
    """Name of one record: ``<topic>/<partition>/<offset>``. Also the id of a timer made from it."""
    return f"{topic}/{partition}/{offset}"


def parse_source(source: str) -> tuple[str, int, int] | None:
    """Topic, partition and offset of :func:`source`; None if it is none."""
    parts = _SOURCE.fullmatch(source)
    return None if parts is None else (parts[1], int(parts[2]), int(parts[3]))


SOURCE_PATTERN = rf"({LEGAL_TOPIC.pattern})/([0-9]{{1,9}})/([0-9]{{1,18}})"
"""What :func:`source` looks like, from end to end."""

_SOURCE = re.compile(SOURCE_PATTERN, re.ASCII)
