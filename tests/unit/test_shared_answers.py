"""Answers about all topics that openings share."""

from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from timers.kafka import shared_answers
from timers.kafka.shared_answers import SharedAnswers


def test_partitions_that_open_at_the_same_time_share_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = object()
    make = Mock()
    monkeypatch.setattr(shared_answers, "asking_admin", make)
    times = iter([10.0, 10.5, 11.2, 11.2])
    monkeypatch.setattr(shared_answers, "monotonic", lambda: next(times))
    answers, numbers = SharedAnswers(settings), count()

    def question(admin: Any, more: int) -> int:
        assert admin is make.return_value
        return next(numbers) + more

    assert [answers.ask(question, 10).result(30) for _ in range(3)] == [10, 10, 11], "a second later it is asked again"
    make.assert_called_once_with(settings)


def test_an_error_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = object()
    monkeypatch.setattr(shared_answers, "asking_admin", Mock(side_effect=OSError("no brokers")))
    answers = SharedAnswers(settings)
    for _ in range(2):
        with pytest.raises(OSError, match="no brokers"):
            answers.ask(lambda admin: None).result(30)
