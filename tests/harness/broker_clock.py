"""Brokers whose clocks are wrong: each is a real broker, with Kafka's own clock class changed by a constant.

Kafka reads its wall clock in ``SystemTime.milliseconds()`` only. A class file before Kafka's jars on the class path
replaces this class: its method adds a constant. Intervals are measured by other clocks and stay right.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

from timers.broker import jars

_CLASS = "org/apache/kafka/common/utils/SystemTime.class"
_METHOD = b"milliseconds"
_LDC2_W, _LADD, _LRETURN = 0x14, 0x61, 0xAD
_INVOKESTATIC = 0xB8

_CONSTANT_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
"""Tag -> size in bytes of the other constants than text (tag 1)."""
_TEXT, _LONG = 1, 5


def ahead_by(offset_s: float, directory: Path) -> str:
    """Java options (``KAFKA_OPTS``) of a broker whose clock is ahead by ``offset_s``; negative: behind."""
    paths = jars.KAFKA.ensure(None)
    (clients,) = (path for path in paths if path.name.startswith("kafka-clients-"))
    target = directory / f"clock{offset_s:+.0f}" / _CLASS
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(clients) as jar:
        target.write_bytes(_with_offset(jar.read(_CLASS), round(offset_s * 1000)))
    classes = target.parents[_CLASS.count("/")]
    return f"{os.environ.get('KAFKA_OPTS', '')} -cp {os.pathsep.join(map(str, [classes, *paths]))}"


def _with_offset(data: bytes, offset_ms: int) -> bytes:
    """Return the class with ``return System.currentTimeMillis() + offset_ms`` in its method."""
    (count,) = struct.unpack_from(">H", data, 8)
    texts: dict[bytes, int] = {}
    place, index = 10, 1
    while index < count:
        tag = data[place]
        if tag == _TEXT:
            (size,) = struct.unpack_from(">H", data, place + 1)
            texts[data[place + 3 : place + 3 + size]] = index
            place += 3 + size
        else:
            place += 1 + _CONSTANT_SIZES[tag]
        index += 2 if tag in (5, 6) else 1  # long and double take two places
    constants, rest = data[10:place] + struct.pack(">Bq", _LONG, offset_ms), data[place:]
    # The method in the class file: access flags, name, descriptor, one attribute, which is its code.
    header = struct.pack(">HHHHH", 1, texts[_METHOD], texts[b"()J"], 1, texts[b"Code"])
    assert rest.count(header) == 1, "Kafka's class has changed"
    start = rest.index(header) + len(header)
    (size,) = struct.unpack_from(">I", rest, start)
    code_start = start + 4 + 8  # size; max stack, max locals, size of the code
    read_clock = rest[code_start : code_start + 3]
    assert read_clock[0] == _INVOKESTATIC and rest[code_start + 3] == _LRETURN, "Kafka's method has changed"
    code = read_clock + struct.pack(">BHBB", _LDC2_W, count, _LADD, _LRETURN)
    attribute = struct.pack(">HHI", 4, 1, len(code)) + code + struct.pack(">HH", 0, 0)
    changed = rest[:start] + struct.pack(">I", len(attribute)) + attribute + rest[start + 4 + size :]
    return data[:8] + struct.pack(">H", count + 2) + constants + changed
