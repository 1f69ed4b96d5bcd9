"""The relay of an outbox, which sends what :class:`timers.client.SqlOutbox` has written into a database of its user."""

from timers.outbox.relaying import Relaying

__all__ = ["Relaying"]
