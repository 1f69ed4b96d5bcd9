"""Forks of the process of the tests."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen() -> Iterator[None]:
    """Forks in the block never collect objects of this process: to free a client of librdkafka, a fork would wait for
    threads that it does not have."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
