"""Prints progress on stdout, at least once in :data:`SILENCE_S`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENCE_S = 1.9


class Printer:
    """Prints lines. During a long step without lines it prints the progress of the step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_at = time.monotonic()
        self._doing: list[tuple[str, float, Callable[[], str]]] = []
        threading.Thread(target=self._beat, name="progress", daemon=True).start()

    def line(self, text: str = "") -> None:
        """Print one line now."""
        with self._lock:
            self._last_at = time.monotonic()
            print(text, flush=True)

    @contextmanager
    def doing(self, text: str, detail: Callable[[], str] = str) -> Iterator[None]:
        """Print ``text``, the elapsed seconds and ``detail()`` again and again during the block."""
        entry = (text, time.monotonic(), detail)
        self._doing.append(entry)
        try:
            yield
        finally:
            self._doing.remove(entry)

    def _beat(self) -> None:
        while True:
            time.sleep(SILENCE_S / 4)
            if self._doing and time.monotonic() - self._last_at > SILENCE_S:
                text, since, detail = self._doing[-1]
                more = detail()
                self.line(f"    {time.monotonic() - since:5.0f} s  {text}{': ' if more else ''}{more}")
