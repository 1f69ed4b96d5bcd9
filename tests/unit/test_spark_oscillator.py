"""The oscillator of the engine on Spark judges its own ticks: without a broker."""

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.spark.engine.oscillator import Oscillator

DAY_S = 86_400


def test_ticks_count_on_a_machine_with_a_wrong_clock_once_they_count_for_the_buckets() -> None:
    """The timers of the retry topic need them, on a new driver too."""
    oscillator = Oscillator(Settings.load({"TIMERS_BROKERS": "127.0.0.1:1"}), Clock(offset_s=-DAY_S))
    now_ms = int((Clock().now_s()) * 1000)
    assert not oscillator._counts(now_ms, None)
    oscillator.follow(now_ms + 60_000 * 60)
    assert not oscillator._counts(now_ms, None), "the brokers' clock is behind what has fired"
    oscillator.follow(now_ms - 2_000)
    assert not oscillator._counts(now_ms + DAY_S * 1000, None), "a leap"
    assert oscillator._counts(now_ms, None)
