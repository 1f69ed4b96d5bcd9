"""Durable, exact timers on Apache Kafka: send a message now, get it back at the second you asked for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Return ``__version__``. It is read when it is asked for: the import takes as long as a third of the client."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kafka-timers")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
