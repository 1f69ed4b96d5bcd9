from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Progress(_message.Message):
    __slots__ = ("version", "topic_id", "next_offset", "fired_due_s", "fired_offset", "settings", "lineage", "rescues", "doubt", "machine", "snapshot", "older_snapshot", "late_changes", "holds", "taken_command", "checksum")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    RESCUES_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    OLDER_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    LATE_CHANGES_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_COMMAND_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: bytes
    next_offset: int
    fired_due_s: int
    fired_offset: int
    settings: _containers.RepeatedCompositeFieldContainer[SettingChange]
    lineage: Lineage
    rescues: _containers.RepeatedCompositeFieldContainer[Rescue]
    doubt: Doubt
    machine: str
    snapshot: Snapshot
    older_snapshot: Snapshot
    late_changes: _containers.RepeatedScalarFieldContainer[int]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    taken_command: int
    checksum: int
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., fired_due_s: _Optional[int] = ..., fired_offset: _Optional[int] = ..., settings: _Optional[_Iterable[_Union[SettingChange, _Mapping]]] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., rescues: _Optional[_Iterable[_Union[Rescue, _Mapping]]] = ..., doubt: _Optional[_Union[Doubt, _Mapping]] = ..., machine: _Optional[str] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., older_snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., late_changes: _Optional[_Iterable[int]] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ..., taken_command: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("epochs", "batch", "end", "count")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
    batch: Batch
    end: int
    count: Count
    def __init__(self, epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., end: _Optional[int] = ..., count: _Optional[_Union[Count, _Mapping]] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ("since", "to", "records")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    since: int
    to: int
    records: int
    def __init__(self, since: _Optional[int] = ..., to: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("epoch", "first_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_offset: int
    def __init__(self, epoch: _Optional[int] = ..., first_offset: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("base_offset", "last_offset", "max_timestamp_ms", "crc")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    crc: int
    def __init__(self, base_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., max_timestamp_ms: _Optional[int] = ..., crc: _Optional[int] = ...) -> None: ...

class Rescue(_message.Message):
    __slots__ = ("from_offset", "next_offset", "through", "fired_due_s", "fired_offset", "holds")
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    FIRED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    from_offset: int
    next_offset: int
    through: bytes
    fired_due_s: int
    fired_offset: int
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, from_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., through: _Optional[bytes] = ..., fired_due_s: _Optional[int] = ..., fired_offset: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("target", "reason", "number", "begin", "end", "since_s", "released_due_s", "released_offset", "until_s", "over_s", "resumed_s", "rows", "gone")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[Hold.Reason]
        PAUSE: _ClassVar[Hold.Reason]
        NOISY: _ClassVar[Hold.Reason]
    UNSPECIFIED: Hold.Reason
    PAUSE: Hold.Reason
    NOISY: Hold.Reason
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    RELEASED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    RELEASED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    OVER_S_FIELD_NUMBER: _ClassVar[int]
    RESUMED_S_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    target: str
    reason: Hold.Reason
    number: int
    begin: Moment
    end: Moment
    since_s: int
    released_due_s: int
    released_offset: int
    until_s: int
    over_s: int
    resumed_s: int
    rows: int
    gone: int
    def __init__(self, target: _Optional[str] = ..., reason: _Optional[_Union[Hold.Reason, str]] = ..., number: _Optional[int] = ..., begin: _Optional[_Union[Moment, _Mapping]] = ..., end: _Optional[_Union[Moment, _Mapping]] = ..., since_s: _Optional[int] = ..., released_due_s: _Optional[int] = ..., released_offset: _Optional[int] = ..., until_s: _Optional[int] = ..., over_s: _Optional[int] = ..., resumed_s: _Optional[int] = ..., rows: _Optional[int] = ..., gone: _Optional[int] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("next_offset", "fired_due_s", "fired_offset", "holes")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRED_DUE_S_FIELD_NUMBER: _ClassVar[int]
    FIRED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    fired_due_s: int
    fired_offset: int
    holes: int
    def __init__(self, next_offset: _Optional[int] = ..., fired_due_s: _Optional[int] = ..., fired_offset: _Optional[int] = ..., holes: _Optional[int] = ...) -> None: ...

class Doubt(_message.Message):
    __slots__ = ("before_offset", "worker")
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    before_offset: int
    worker: str
    def __init__(self, before_offset: _Optional[int] = ..., worker: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("topic_id", "number", "first_offset", "end_offset", "applied", "keys", "rows", "digest")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    number: int
    first_offset: int
    end_offset: int
    applied: int
    keys: int
    rows: int
    digest: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., number: _Optional[int] = ..., first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., applied: _Optional[int] = ..., keys: _Optional[int] = ..., rows: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class SettingChange(_message.Message):
    __slots__ = ("name", "from_offset", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    from_offset: int
    value: str
    def __init__(self, name: _Optional[str] = ..., from_offset: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
