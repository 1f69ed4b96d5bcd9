"""Errors that leave the process: they arrive as they were raised."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

import timers.client
import timers.console.kafka_cluster
import timers.offline.targets
import timers.process.http.asking
import timers.queue  # noqa: F401  it imports all that it can raise
from tests.harness.forks import frozen
from tests.harness.waiting import DEADLINE_S
from timers.core.progress import Progress
from timers.errors import DoubtfulLog, LevelTooHigh, MissingExtraError, PartlyPublishedError, TimersError
from timers.queue.running import RemoteError

OWN: dict[type[Exception], Callable[[], Exception]] = {
    PartlyPublishedError: lambda: PartlyPublishedError("3 of 5", ["a/0/1", None], {1}, 2),
    MissingExtraError: lambda: MissingExtraError("pyspark", "spark"),
    DoubtfulLog: lambda: DoubtfulLog("a hole", Progress(7)),
    LevelTooHigh: lambda: LevelTooHigh(12, 10, "requests/3"),
}
"""Those with constructors of their own."""


def _kinds(kind: type[TimersError]) -> Iterator[type[TimersError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__.startswith("timers."):
            yield from _kinds(each)


def _made(kind: type[TimersError]) -> Exception:
    return OWN[kind]() if kind in OWN else kind("topic 'a': no broker answers")


ERRORS = [_made(kind) for kind in _kinds(TimersError)]


def _pickled(protocol: int, error: Exception) -> object:
    return pickle.loads(pickle.dumps(error, protocol))


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    **{f"pickle {each}": partial(_pickled, each) for each in range(6)},
}


OF_A_HANDLER = RemoteError("ValueError()", "Traceback", "ValueError at a.py:1")


def _same(error: Exception, found: Exception) -> None:
    assert type(found) is type(error)
    assert (str(found), repr(found), found.args) == (str(error), repr(error), error.args)
    assert found.__dict__ == error.__dict__


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [*ERRORS, OF_A_HANDLER], ids=lambda error: type(error).__name__)
def test_an_error_survives_a_copy(error: Exception, way: str) -> None:
    error.add_note("seen in a test")
    _same(error, WAYS[way](error))


def _raise(index: int) -> None:
    raise ERRORS[index]


@pytest.mark.parametrize("kind", ["multiprocessing", "concurrent.futures"])
def test_a_pool_of_processes_raises_the_error_of_its_worker(kind: str) -> None:
    """Where an error cannot be made anew, multiprocessing.Pool waits for ever, and an executor is broken."""
    context = multiprocessing.get_context("fork")
    indexes = [index for index, error in enumerate(ERRORS) if type(error) in OWN]
    with frozen():
        if kind == "multiprocessing":
            with context.Pool(1) as pool:
                for index in indexes:
                    with pytest.raises(type(ERRORS[index])) as found:
                        pool.apply_async(_raise, (index,)).get(DEADLINE_S)
                    assert found.value.args == ERRORS[index].args
        else:
            with ProcessPoolExecutor(1, mp_context=context) as executor:
                for index in indexes:
                    with pytest.raises(type(ERRORS[index])) as found:
                        executor.submit(_raise, index).result(DEADLINE_S)
                    assert found.value.args == ERRORS[index].args
