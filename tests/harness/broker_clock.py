"""Brokers whose clocks are wrong: each is a real broker, with Kafka's own clock class changed by a constant.

Kafka reads its wall clock in ``SystemTime.milliseconds()``, and Java's own clock for the markers of transactions, in
``MemoryRecords``. Class files before Kafka's jars on the class path replace both classes: the method of the first one
adds a constant, and the other one calls a class of ours in place of Java's. Intervals are measured by other clocks and
stay right.
"""

import os
import struct
import zipfile
from pathlib import Path

from timers.cli.broker import jars

_CLASS = "org/apache/kafka/common/utils/SystemTime.class"
_MARKERS = "/MemoryRecords.class"
_JAVAS, _OURS = b"java/lang/System", b"timers/ShiftedSystem"
_JAVA_17 = 61
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
    classes, offset_ms = directory / f"clock{offset_s:+.0f}", round(offset_s * 1000)
    with zipfile.ZipFile(clients) as jar:
        (markers,) = (name for name in jar.namelist() if name.endswith(_MARKERS))
        made = {
            _CLASS: _with_offset(jar.read(_CLASS), offset_ms),
            markers: _with_our_system(jar.read(markers)),
            f"{_OURS.decode()}.class": _our_system(offset_ms),
        }
    for name, data in made.items():
        (classes / name).parent.mkdir(parents=True, exist_ok=True)
        (classes / name).write_bytes(data)
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


def _with_our_system(data: bytes) -> bytes:
    """Return a class that calls :func:`_our_system` in place of Java's ``System``."""
    name = struct.pack(">BH", _TEXT, len(_JAVAS)) + _JAVAS
    assert data.count(name) == 1 and b"currentTimeMillis" in data, "Kafka's class has changed"
    return data.replace(name, struct.pack(">BH", _TEXT, len(_OURS)) + _OURS)


def _our_system(offset_ms: int) -> bytes:
    """Return a class whose ``currentTimeMillis()`` is that of Java's ``System`` and a constant."""

    def text(data: bytes) -> bytes:
        return struct.pack(">BH", _TEXT, len(data)) + data

    constants = [
        *(text(_OURS), struct.pack(">BH", 7, 1), text(b"java/lang/Object"), struct.pack(">BH", 7, 3)),
        *(text(b"currentTimeMillis"), text(b"()J"), text(b"Code")),
        *(text(_JAVAS), struct.pack(">BH", 7, 8), struct.pack(">BHH", 12, 5, 6), struct.pack(">BHH", 10, 9, 10)),
        struct.pack(">Bq", _LONG, offset_ms),
    ]
    code = struct.pack(">BHBHBB", _INVOKESTATIC, 11, _LDC2_W, 12, _LADD, _LRETURN)
    body = struct.pack(">HHI", 4, 0, len(code)) + code + struct.pack(">HH", 0, 0)
    method = struct.pack(">HHHHHI", 0x0009, 5, 6, 1, 7, len(body)) + body  # public static
    head = struct.pack(">IHHH", 0xCAFEBABE, 0, _JAVA_17, len(constants) + 2)  # the long takes two places
    return head + b"".join(constants) + struct.pack(">HHHHHH", 0x0021, 2, 4, 0, 0, 1) + method + struct.pack(">H", 0)
