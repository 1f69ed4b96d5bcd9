from timers.v1 import progress_pb2 as _progress_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotFooter(_message.Message):
    __slots__ = ("cluster", "app", "topic_id", "partition", "request_format", "applied", "fired_due_s", "fired_offset", "history", "history_hash", "keys", "rows", "digest", "checksum")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FORMAT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    FIRED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_HASH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    app: str
    topic_id: bytes
    partition: int
    request_format: str
    applied: int
    fired_due_s: int
    fired_offset: int
    history: _containers.RepeatedCompositeFieldContainer[_progress_pb2.SettingChange]
    history_hash: bytes
    keys: int
    rows: int
    digest: bytes
    checksum: int
    def __init__(self, cluster: _Optional[str] = ..., app: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., request_format: _Optional[str] = ..., applied: _Optional[int] = ..., fired_due_s: _Optional[int] = ..., fired_offset: _Optional[int] = ..., history: _Optional[_Iterable[_Union[_progress_pb2.SettingChange, _Mapping]]] = ..., history_hash: _Optional[bytes] = ..., keys: _Optional[int] = ..., rows: _Optional[int] = ..., digest: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...
