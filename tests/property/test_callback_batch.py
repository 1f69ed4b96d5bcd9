"""The writer of callbacks, as Python and compiled, fills the same batches as aiokafka's builder, for any rows."""

from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.harness.compiled import forms
from tests.harness.discarding import DiscardingProducer, UsableTopics, discarding
from tests.property.unicode_text import TEXT
from timers.core.progress import Cuts
from timers.core.timer import Origin, Row, Tick
from timers.kafka.aiokafka_internals import callback_batch
from timers.kafka.aiokafka_internals.record_batch import RecordBatch

FORMS = forms(callback_batch)

OFFSETS = st.integers(0, 2**63 - 1) | st.integers(0, 1000)
BYTES = st.binary(max_size=40) | st.sampled_from([b"", b"\xff" * 63, b"v" * 64, b"w" * 8192])
KEYS = TEXT | BYTES | st.none() | st.sampled_from(["", "\ud800", "k" * 200, "\U0001f680"])
HEADERS = st.none() | st.lists(st.tuples(TEXT, BYTES | st.none()), max_size=4)
ORIGINS = st.none() | st.builds(
    lambda id, due_s, source: Origin(id, due_s, 0, source), TEXT, st.integers(0, 10**11), st.none() | TEXT
)
ROWS = st.builds(
    lambda offset, key, value, headers, origin: (offset, "t", key, value, headers, origin and tuple(origin)),
    *(OFFSETS, KEYS, BYTES, HEADERS, ORIGINS),
)
SENDS = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.lists(st.tuples(st.integers(0, 10**11), st.lists(ROWS, min_size=1, max_size=8)), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=3,
)
"""(the brokers' time in seconds, due seconds and their rows) of calls that fill one transaction."""


def filled(form: str | None, sends: list[Any], partitions: int, max_bytes: int, cuts: Cuts) -> Any:
    """Returns what a transaction sends, or the error that it raises; without a form: by aiokafka's builder."""
    known = UsableTopics({"t": partitions})
    known.max_message_bytes["t"] = max_bytes
    transaction = discarding(known, ("requests", 3))
    producer: Any = DiscardingProducer()
    producer.batch = RecordBatch if form is None else FORMS[form].CallbackBatch
    producer.write_callbacks = None if form is None else FORMS[form].write_callbacks
    transaction._producer = producer
    transaction.bind(b"", 0, cuts)
    transaction.begin(Tick(1_790_000_000_123))
    try:
        for now_s, due in sends:
            transaction._now_s = partial(float, now_s)
            transaction.send("t", partitions, due)
        transaction._add("t", 0, None, None, [("n", None)], 0)
    except UnicodeEncodeError as error:
        return str(error)
    sent = []
    for topic, partition, batch in transaction._take():
        made: Any = batch
        made.seal()
        size = made.size()
        made._set_producer_state(2**40, 7, 2**31 - 1)
        data = bytes(made._build())
        sent.append((topic, partition, data, made.offsets, made.record_count(), made.closed(), size == len(data)))
    return sent


def agree(sends: list[Any], partitions: int, max_bytes: int, cuts: Cuts = ()) -> None:
    expected = filled(None, sends, partitions, max_bytes, cuts)
    for form in FORMS:
        assert filled(form, sends, partitions, max_bytes, cuts) == expected, form


PLAIN: Row = (7, "t", "k", b"v", None, None)


@given(SENDS, st.integers(1, 5) | st.integers(1, 2000), st.sampled_from([1, 200, 400, 10_000, 256_000]), st.booleans())
@example([(0, [(9, [PLAIN])])], 1, 1, False)
@example(
    [(2**40, [(9, [PLAIN, PLAIN])]), (0, [(9, [PLAIN])])], 1, 10_000, False
)  # a time below that of the first record
@example([(0, [(9, [(2**63 - 1, "t", None, b"", [("", None)], None)])])], 3, 10_000, False)
def test_the_same_bytes_as_aiokafkas_builder(sends: list[Any], partitions: int, max_bytes: int, cut: bool) -> None:
    agree(sends, partitions, max_bytes, ((5, 1),) if cut else ())


@given(st.lists(st.binary(max_size=70), max_size=20), st.integers(1, 10_000))
def test_the_same_partitions_as_javas_producer(keys: list[bytes], partitions: int) -> None:
    rows = [(offset, "t", key, b"", None, None) for offset, key in enumerate(keys)]
    agree([(0, [(9, rows)])], partitions, 256_000)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_built_once(form: str) -> None:
    batch = FORMS[form].CallbackBatch(10_000)
    batch.add(0, 5, b"k", b"v", ())
    batch._set_producer_state(1, 2, 3)
    built = batch._build()
    batch._set_producer_state(9, 9, 9)  # a batch that is sent again keeps its sequence number
    assert batch._build() is built and batch.size() == len(built)


@pytest.mark.parametrize("form", FORMS)
def test_only_some_names_of_headers_are_kept(form: str) -> None:
    module = FORMS[form]
    for number in range(2 * module.MAX_NAMES):
        module.encode_headers([("n" * module.MAX_NAME_BYTES + str(number), b""), (f"name-{number}", b"")])
    assert len(module._NAMES) <= module.MAX_NAMES
    assert all(len(name) <= module.MAX_NAME_BYTES for name in module._NAMES)
