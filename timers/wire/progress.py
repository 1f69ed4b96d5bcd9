"""Encodes and decodes progress records: key ``<topic>/<partition>``, value :class:`timers.v1.progress_pb2.Progress`."""

from google.protobuf.message import DecodeError

from timers.core.keys import NEVER
from timers.core.progress import Progress, SettingChange
from timers.errors import LogMismatch
from timers.v1 import progress_pb2
from timers.wire.topics import partition_name

VERSION = 1


def encode_key(topic: str, partition: int) -> bytes:
    """Return the key of a machine's progress record."""
    return partition_name(topic, partition).encode()


def encode(progress: Progress, topic_id: bytes) -> bytes:
    """Return the value of a progress record. Inverse: :func:`decode`."""
    message = progress_pb2.Progress(version=VERSION, topic_id=topic_id, next_offset=progress.next_offset)
    if progress.fired_through != NEVER:
        message.fired_due_s, message.fired_offset = progress.fired_through
    for change in progress.settings:
        message.settings.add(name=change.name, from_offset=change.from_offset, value=str(change.value))
    return message.SerializeToString()


def decode(value: bytes) -> tuple[Progress, bytes]:
    """Return the progress and the id of its request topic."""
    try:
        message = progress_pb2.Progress.FromString(value)
    except DecodeError:
        raise LogMismatch("a progress record cannot be read: the progress topic holds other data") from None
    if message.version != VERSION:
        raise LogMismatch(
            f"a progress record has version {message.version}, this build reads {VERSION}: run the build that wrote it"
        )
    fired = (message.fired_due_s, message.fired_offset) if message.HasField("fired_due_s") else NEVER
    try:
        settings = tuple(SettingChange(each.name, each.from_offset, int(each.value)) for each in message.settings)
    except ValueError:
        raise LogMismatch(
            "a progress record holds a setting that is not a number: was it written by this app?"
        ) from None
    return Progress(message.next_offset, fired, settings), message.topic_id
