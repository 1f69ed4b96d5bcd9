from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Progress(_message.Message):
    __slots__ = ("version", "topic_id", "next_offset", "fired_due_s", "fired_offset", "settings")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: bytes
    next_offset: int
    fired_due_s: int
    fired_offset: int
    settings: _containers.RepeatedCompositeFieldContainer[SettingChange]
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., fired_due_s: _Optional[int] = ..., fired_offset: _Optional[int] = ..., settings: _Optional[_Iterable[_Union[SettingChange, _Mapping]]] = ...) -> None: ...

class SettingChange(_message.Message):
    __slots__ = ("name", "from_offset", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    from_offset: int
    value: str
    def __init__(self, name: _Optional[str] = ..., from_offset: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
