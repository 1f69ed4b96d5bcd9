"""Any value of any library, at any argument: it is taken, or refused with one error of ours that names the argument."""

import array
import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from timers.client import Backoff, InvalidTimerError, SettingsError, TimerRequest, TimersClient
from timers.client.request import Encoder
from timers.client.retry import DEFAULT_BACKOFF, plan
from timers.client.timer_lines import parse_fields
from timers.queue import Message, Queue
from timers.testing import SimQueue, SimTimers

UTC = dt.timezone.utc  # noqa: UP017  # the module is imported as a whole


class Text(str):
    pass


class BrokenZone(dt.tzinfo):
    def utcoffset(self, _: Any) -> Any:
        raise RuntimeError("this zone has no rules")

    def dst(self, _: Any) -> None:
        return None

    def tzname(self, _: Any) -> str:
        return "broken"


class TwoDays(BrokenZone):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(days=2)


class Unwilling:
    """It can neither be compared, nor hashed, nor shown."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "5": 5,
    "5.0": 5.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "1e308": 1e308,
    "int of 5,000 digits": 10**5000,
    "negative int of 5,000 digits": -(10**5000),
    "int of 400 digits": 10**400,
    "complex": 1j,
    "Decimal": Decimal("1900000000.5"),
    "Decimal NaN": Decimal("nan"),
    "Decimal sNaN": Decimal("sNaN"),
    "Decimal infinity": Decimal("inf"),
    "Decimal large": Decimal("1e1000000"),
    "Decimal small": Decimal("1e-1000000"),
    "Fraction": Fraction(3_800_000_001, 2),
    "Fraction large": Fraction(10**400, 3),
    "str": "x",
    "empty str": "",
    "str subclass": Text("abc"),
    "half of a surrogate pair": "\ud800",
    "byte in a str": "a\udc80",
    "NUL": "a\0b",
    "bytes": b"abc",
    "bytes no UTF-8": b"\xff",
    "bytearray": bytearray(b"\xff"),
    "memoryview": memoryview(b"abc"),
    "memoryview with steps": memoryview(b"abcdef")[::2],
    "memoryview of ints": memoryview(array.array("i", [1, 2])),
    "memoryview released": released(),
    "memoryview of two dimensions": memoryview(b"abcdef").cast("B", [2, 3]),
    "array": array.array("b", [1, 2]),
    "datetime.max": dt.datetime.max,  # noqa: DTZ901  # a value that is refused
    "datetime.max UTC": dt.datetime.max.replace(tzinfo=UTC),
    "datetime.min UTC": dt.datetime.min.replace(tzinfo=UTC),
    "datetime.max west": dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-23))),
    "datetime.min east": dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=23))),
    "datetime of a broken zone": dt.datetime(2030, 1, 1, tzinfo=BrokenZone()),
    "datetime two days off": dt.datetime(2030, 1, 1, tzinfo=TwoDays()),
    "date": dt.date(2030, 1, 1),
    "time": dt.time(12),
    "timedelta.max": dt.timedelta.max,
    "timedelta.min": dt.timedelta.min,
    "pandas.NaT": pd.NaT,
    "pandas.NA": pd.NA,
    "pandas.Timestamp": pd.Timestamp("2030-01-01", tz="UTC"),
    "pandas.Timestamp naive": pd.Timestamp("2030-01-01"),
    "pandas.Timedelta": pd.Timedelta("15min"),
    "numpy.bool": np.bool_(True),
    "numpy.int64": np.int64(1_900_000_000),
    "numpy.uint64": np.uint64(1_900_000_000),
    "numpy.float64": np.float64(1.9e9),
    "numpy.float16": np.float16(900),
    "numpy.nan": np.float64("nan"),
    "numpy.str": np.str_("abc"),
    "numpy.bytes": np.bytes_(b"abc"),
    "numpy.datetime64": np.datetime64("2030-01-01"),
    "numpy NaT": np.datetime64("NaT"),
    "numpy.timedelta64": np.timedelta64(15, "m"),
    "numpy.timedelta64 NaT": np.timedelta64("NaT"),
    "numpy array": np.array([1, 2]),
    "numpy array of no dimension": np.array(1_900_000_000),
    "list": [1],
    "list of None": [None],
    "tuple": (1,),
    "dict": {"a": 1},
    "set": {1},
    "UUID": uuid.uuid4(),
    "unwilling": Unwilling(),
    "object": object(),
    "class": int,
    "ellipsis": ...,
    "pair of one": [("a",)],
    "pair of three": [("a", "b", "c")],
    "pair with an int": [("a", 5)],
    "pair with a name of bytes": [(b"a", b"x")],
    "name of a surrogate": [("\ud800", b"")],
    "value of a surrogate": [("a", "\ud800")],
    "name with NUL": [("a\0b", b"x")],
    "mapping with NaN": {"a": float("nan")},
}

MESSAGE = {"topic": "t", "partition": 0, "offset": 0, "key": b"k", "value": b"v", "headers": []}
FIELDS = {"topic": "t", "key": "k", "value": b"v", "at": 1_900_000_000, "delay": None, "headers": ()}


def encode(field: str, value: Any) -> None:
    due = {"at": None} if field == "delay" else {}
    Encoder(10**6)(TimerRequest(**{**FIELDS, **due, field: value}))


def take_line(field: str, value: Any) -> None:
    due = {} if field in ("at", "delay") else {"at": 1_900_000_000}
    Encoder(10**6)(parse_fields({"topic": "t", "value": "v", **due, field: value}, 0))


def retry(field: str, value: Any) -> None:
    if field == "backoff":
        plan(SimpleNamespace(**MESSAGE), None, value, None, "dead")
    else:
        plan(SimpleNamespace(**{**MESSAGE, field: value}), None, DEFAULT_BACKOFF, None, "dead")


def open_client(argument: str, value: Any) -> None:
    TimersClient(**{"brokers": "127.0.0.1:1", argument: value})


def open_queue(argument: str, value: Any) -> None:
    Queue(**{"topic": "q", "brokers": "127.0.0.1:1", argument: value})


SIM_CALLS: dict[str, Callable[[SimTimers, Any], object]] = {
    "cancel id": lambda timers, value: timers.cancel(value),
    "cancel if_source": lambda timers, value: timers.cancel("a", if_source=value),
    "update id": lambda timers, value: timers.update(value, "t", "k", b"v", delay=5),
    "update if_source": lambda timers, value: timers.update("a", "t", "k", b"v", delay=5, if_source=value),
    "send_later when": lambda timers, value: timers.send_later("k", b"v", "t", value),
    "schedule_many item": lambda timers, value: timers.schedule_many([value]),
    "advance": lambda timers, value: timers.advance(value),
}


def received() -> tuple[SimQueue, Message]:
    """A queue, and a message of it."""
    queue = SimQueue()
    queue.send(b"v")
    (message,) = queue.receive()
    return queue, message


MESSAGE_CALLS: dict[str, Callable[[Message, Any], object]] = {
    "retry after": lambda message, value: message.retry(value),
    "retry error": lambda message, value: message.retry(1, value),
    "reject": lambda message, value: message.reject(value),
    "extend": lambda message, value: message.extend(value),
    "output topic": lambda message, value: message.output(value, b"v"),
    "output value": lambda message, value: message.output("t", value),
    "output key": lambda message, value: message.output("t", b"v", key=value),
    "output headers": lambda message, value: message.output("t", b"v", headers=value),
}


def call_message(name: str, value: Any) -> None:
    queue, message = received()
    MESSAGE_CALLS[name](message, value)
    queue.settle()


def send(name: str, value: Any) -> None:
    SimQueue().send_many([{"message": value, "key": (value, b"v"), "headers": ("k", b"v", value)}[name]])


def call_sim(name: str, value: Any) -> None:
    SIM_CALLS[name](SimTimers(), value)


def back_off(field: str, value: Any) -> None:
    Backoff(**{field: value}).delay_s(3)


TAKERS: list[tuple[Callable[[str, Any], None], list[str]]] = [
    (encode, ["topic", "key", "value", "at", "delay", "headers", "token", "id"]),
    (take_line, ["topic", "key", "value", "at", "delay", "headers", "token", "id"]),
    (retry, [*MESSAGE, "backoff"]),
    (back_off, ["first_s", "factor", "most_s", "retries", "jitter"]),
    (call_sim, list(SIM_CALLS)),
    (call_message, list(MESSAGE_CALLS)),
    (send, ["message", "key", "headers"]),
    (open_client, ["brokers", "request_topic", "id_topic", "producer_config", "timeout_s", "max_request_bytes"]),
    (open_queue, ["topic", "name", "brokers", "backoff", "lease_s", "member", "session_timeout_s", "timeout_s"]),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # numpy.float16 is compared with a larger number
@pytest.mark.parametrize(
    ("take", "argument"),
    [pytest.param(take, name, id=f"{take.__name__} {name}") for take, all in TAKERS for name in all],
)
def test_a_value_is_taken_or_refused_with_an_error_of_ours(take: Callable[[str, Any], None], argument: str) -> None:
    escaped = {}
    for name, value in VALUES.items():
        try:
            take(argument, value)
        except (InvalidTimerError, SettingsError):
            pass
        except Exception as error:
            escaped[name] = f"{type(error).__name__}: {error}"
    assert escaped == {}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (pd.NaT, "at=NaT is not a due time: give an aware datetime, epoch seconds"),
        (Decimal("sNaN"), "at=Decimal('sNaN') is not a due time: give an aware datetime, epoch seconds"),
        (
            np.datetime64("2030-01-01"),
            "at=np.datetime64('2030-01-01') is not a due time: give an aware datetime, epoch",
        ),
        (10**5000, "at=<int> is after the year 5138"),
    ],
    ids=["pandas.NaT", "Decimal", "numpy", "int"],
)
def test_the_sentence_names_the_argument_and_the_value(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidTimerError) as error:
        encode("at", value)
    assert str(error.value).startswith(sentence)


def test_nanoseconds_of_pandas_are_rounded_up() -> None:
    record = Encoder(10**6)(TimerRequest("t", None, b"v", pd.Timestamp("2030-01-01T00:00:00.000000001Z")))
    assert record[0] == b"1893456001"


@pytest.mark.parametrize("session_timeout_s", [0, -1, 0.5, 3600])
def test_a_session_timeout_out_of_range_is_refused(session_timeout_s: float) -> None:
    with pytest.raises(SettingsError, match=r"session_timeout_s=.* is not a number of seconds from 1 to 1800"):
        Queue("q", brokers="127.0.0.1:1", session_timeout_s=session_timeout_s)
