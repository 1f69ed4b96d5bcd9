"""Encodes and decodes the records of the topic of targets: key callback topic, value
:class:`timers.v1.targets_pb2.Target`.

A target is a callback topic of which an operator has said something: that its timers wait, or that they go on.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from timers.core.fired import Command
from timers.core.printable import quoted
from timers.v1 import targets_pb2
from timers.wire.progress import has_checksum, with_checksum
from timers.wire.topics import is_legal

TARGETS_PARTITION = 0
"""All records are in this partition of the topic, so they have one order."""

VERSION = 1

MAX_TEXT_CHARACTERS = 200
"""Maximum number of characters of ``by`` and ``why``."""


MAX_MARKS = 8

DEFAULT_RELEASE_S = 600
"""Seconds over which a pause with an end releases its timers when it ends by itself, if nothing else is said."""


class Target(NamedTuple):
    """What an operator wants of one callback topic."""

    command: Command
    """It is for the machines."""
    by: str = ""
    """Who wants it,"""
    why: str = ""
    """why,"""
    at_s: int = 0
    """and the epoch second in which it was said, by the clock of that machine. Nothing depends on them."""
    marks: tuple[str, ...] = ()
    """Which requests gave the newest commands, the newest last: hash of an ``Idempotency-Key``, ``/``, one of the
    request, ``/``, and the number of the command."""


class TargetUnreadable(ValueError):
    """A record cannot be read; the text says why."""


def encode(target: Target) -> tuple[bytes, bytes]:
    """Return key and value of a record. Inverse: :func:`decode`."""
    command = target.command
    message = targets_pb2.Target(
        version=VERSION,
        number=command.number,
        topic=command.target,
        paused=command.is_paused,
        until_s=command.until_s,
        over_s=command.over_s,
        by=target.by,
        why=target.why,
        at_s=target.at_s,
        marks=target.marks[-MAX_MARKS:],
    )
    return command.target.encode(), with_checksum(message)


def decode(key: bytes, value: bytes) -> Target:
    """Return what a record says.

    Raises:
        TargetUnreadable: it cannot be read.
    """
    name = key.decode(errors="replace")
    if not is_legal(name):
        raise TargetUnreadable("its key is no name of a topic")
    try:
        message = targets_pb2.Target.FromString(value)
    except DecodeError:
        raise TargetUnreadable("its value is damaged, or another program wrote it") from None
    if not has_checksum(value):
        raise TargetUnreadable("its value has no valid checksum: it is damaged, or another program wrote it")
    if message.version != VERSION:
        raise TargetUnreadable(f"it has version {message.version}, and this version of timers reads {VERSION}")
    if message.topic != name:
        raise TargetUnreadable(f"its value is about {quoted(message.topic)[:100]}: was it copied?")
    command = Command(message.number, message.topic, message.paused, message.until_s, message.over_s)
    return Target(command, message.by, message.why, message.at_s, tuple(message.marks))


class Targets(NamedTuple):
    """What a topic of targets says."""

    known: dict[str, Target]
    """Callback topic -> its newest record."""
    unreadable: dict[str, str]
    """Name in the key of a record that cannot be read -> why."""
    keys: frozenset[bytes] = frozenset()
    """Keys that are no name of a topic."""

    @property
    def commands(self) -> tuple[Command, ...]:
        """The newest command of each target, ascending by number."""
        return tuple(sorted(each.command for each in self.known.values()))

    @property
    def number(self) -> int:
        """The highest number; 0: there is none."""
        return max((each.command.number for each in self.known.values()), default=0)


def decode_all(values: dict[bytes, bytes]) -> Targets:
    """Return what records say, given by their keys; a record without a value says nothing."""
    found = Targets({}, {})
    wrong = set()
    for key, value in sorted(values.items()):
        if not value:
            continue
        name = key.decode(errors="replace")
        try:
            found.known[name] = decode(key, value)
        except TargetUnreadable as error:
            found.unreadable[name] = str(error)
            if not is_legal(name):
                wrong.add(key)
    return found._replace(keys=frozenset(wrong))
