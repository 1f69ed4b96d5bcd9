"""A short run of the fuzz tests: no input stops a decoder, and every outcome is reached. ``make fuzz`` runs longer."""

import logging
import random
import time

import pytest

from tests.fuzz.decoders import FUZZES
from tests.fuzz.draw import Draw

SECONDS = 0.1
"""CPU time for each decoder; more if an outcome was not reached yet."""

MOST_INPUTS = 300_000


@pytest.mark.parametrize("name", FUZZES)
def test_no_input_stops_a_decoder(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    fuzz = FUZZES[name]
    seen: set[str] = set()
    seed = random.getrandbits(32)
    dice = random.Random(seed)
    end = time.thread_time() + SECONDS
    for number in range(MOST_INPUTS):
        data = dice.randbytes(dice.choice((20, 80, 300, 1000)))
        try:
            seen |= fuzz.run(Draw(data))
        except BaseException as error:
            error.add_note(f"input {number} of seed {seed} stops {name!r}: {data.hex()}")
            raise
        if seen >= fuzz.outcomes and not number % 64 and time.thread_time() > end:
            break
    assert seen == fuzz.outcomes
