"""A clock that a test sets."""


class SimClock:
    """Answers ``now_s``."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
