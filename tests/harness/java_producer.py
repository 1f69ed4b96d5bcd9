"""Publishes with Kafka's console producer, which is a Java client, from the jars of the broker."""

import os
import subprocess
from collections.abc import Iterable

from tests.harness import kafka_version
from tests.harness.records import Request
from tests.harness.waiting import DEADLINE_S
from timers.cli.broker import jars
from timers.process import java

_SEPARATOR = "|"


def console_producer() -> tuple[str, str]:
    """Class of the console producer, and the option that says what a line contains; both have changed with Kafka 4."""
    if kafka_version.chosen().startswith("3."):
        return "kafka.tools.ConsoleProducer", "--property"
    return "org.apache.kafka.tools.ConsoleProducer", "--reader-property"


def produce_by_console(address: str, topic: str, requests: Iterable[Request]) -> None:
    """Publish with Kafka's console producer, which partitions by murmur2. The requests get no source."""
    lines = (request.wire_key + _SEPARATOR.encode() + future_line(request) for request in requests)
    produce_lines(address, topic, lines, "parse.key=true", f"key.separator={_SEPARATOR}")


def produce_lines(address: str, topic: str, lines: Iterable[bytes], *properties: str) -> None:
    """Publish lines with the console producer; ``properties`` describe to its reader what a line contains."""
    program, option = console_producer()
    options = [part for each in properties for part in (option, each)]
    done = subprocess.run(
        [
            str(java.for_broker()),
            "-XX:TieredStopAtLevel=1",
            program,
            *("--bootstrap-server", address, "--topic", topic),
            *options,
        ],
        input=b"".join(line + b"\n" for line in lines),
        env={**os.environ, "CLASSPATH": os.pathsep.join(map(str, jars.KAFKA.ensure(None)))},
        capture_output=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr.decode()


def future_line(request: Request) -> bytes:
    """Encode a Future as one line of UTF-8, because the console producer reads lines of text.

    The tag of the first field would be a line feed, so it is written as 8A 00, which protobuf allows. 8A must not begin
    a UTF-8 character, so an unknown field whose content ends with C2 is before it.
    """
    parts = [b"\x7a\x01\xc2", _field(b"\x8a\x00", request.target.encode())]
    parts += [_field(b"\x12", request.key.encode()), _field(b"\x1a", request.value)]
    line = b"".join(parts)
    assert not {b"\n", b"\r", _SEPARATOR.encode()} & {line[i : i + 1] for i in range(len(line))}
    assert line.decode().encode() == line
    return line


def _field(tag: bytes, content: bytes) -> bytes:
    assert len(content) < 128
    return tag + bytes([len(content)]) + content
