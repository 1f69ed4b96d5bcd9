from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Target(_message.Message):
    __slots__ = ("version", "number", "topic", "paused", "until_s", "over_s", "by", "why", "at_s", "marks", "checksum")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    OVER_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    number: int
    topic: str
    paused: bool
    until_s: int
    over_s: int
    by: str
    why: str
    at_s: int
    marks: _containers.RepeatedScalarFieldContainer[str]
    checksum: int
    def __init__(self, version: _Optional[int] = ..., number: _Optional[int] = ..., topic: _Optional[str] = ..., paused: _Optional[bool] = ..., until_s: _Optional[int] = ..., over_s: _Optional[int] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., at_s: _Optional[int] = ..., marks: _Optional[_Iterable[str]] = ..., checksum: _Optional[int] = ...) -> None: ...
