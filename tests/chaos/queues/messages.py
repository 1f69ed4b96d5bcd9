"""What the handler of a message does, by the number of the message."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

RETRY_AFTER_S = 2.0
LEASE_S = 20.0
SLOW_S = 0.5
BAD_ATTEMPTS = 2


def fails(number: int) -> bool:
    """In its first attempt, its handler retries it after :data:`RETRY_AFTER_S`."""
    return number % 10 == 0


def is_rejected(number: int) -> bool:
    return number % 100 == 1


def ends_badly(number: int) -> bool:
    """In its first :data:`BAD_ATTEMPTS` attempts, its handler raises what would end a thread, a loop or a process."""
    return number % 100 == 6


def has_output(number: int) -> bool:
    """It has an output in Kafka."""
    return number % 5 == 2


def has_row(number: int) -> bool:
    """It has a row in SQL."""
    return number % 5 == 3


def is_slow(number: int) -> bool:
    """Its handler takes :data:`SLOW_S`, so that partitions move while messages of its batch are worked on."""
    return number % 2000 == 9


def value_of(number: int) -> bytes:
    """A message of 100 bytes."""
    return b"%0100d" % number
