"""Limits of one machine, from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from timers.core.pace import OVERDUE_S


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one machine."""

    chunk_timers: int
    """Maximum number of timers in one transaction; may be exceeded by one stored group."""
    chunk_bytes: int
    """Maximum bytes of timers in one transaction; may be exceeded by one stored group."""
    max_request_bytes: int
    """Maximum bytes of a request value."""
    catch_up_per_s: int = 0
    """Maximum number of overdue timers fired in one second; 0 means no bound."""
    overdue_s: int = OVERDUE_S
    """A timer is overdue if it is more seconds past its due second than this."""
    partitions: int = 0
    """Number of partitions of the topic, if its timers have ids."""
    reject_overdue: bool = False
    """Reject requests that were due before they were sent, if the request format can."""
    stale_after_s: int = 0
    """Maximum age of the store in seconds, if the log is compacted [I9]; 0: the log is not compacted."""
