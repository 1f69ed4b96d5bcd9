"""Sizes of messages, compared with those of the batch builder of aiokafka, which the worker uses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.spark.engine import sizes
from timers.worker.sending import batches

some_bytes = st.none() | st.binary(max_size=300) | st.integers(60, 70_000).map(bytes)


@given(some_bytes, some_bytes, st.lists(st.tuples(st.text(max_size=80), some_bytes), max_size=70))
def test_a_single_message_has_the_size_that_the_worker_computes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    assert sizes.size_alone(key, value, headers) == batches.size_alone(key, value, headers)
