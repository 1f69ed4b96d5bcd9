"""Runs tools of Kafka, which are Java clients, from the jars of the broker."""

import os
import subprocess

from tests.harness.waiting import DEADLINE_S
from timers.cli.broker import jars
from timers.process import java

_OFFSET, _SEPARATOR = "Offset:", "|"


def consume_by_console(address: str, topic: str, partition: int, count: int) -> list[tuple[int, str]]:
    """Return offset and value of the first ``count`` records of a partition. The values must be text without line ends.

    It ends with an error if there are fewer, or one cannot be read.
    """
    done = subprocess.run(
        [
            str(java.for_broker()),
            "-XX:TieredStopAtLevel=1",
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", address, "--topic", topic, "--partition", str(partition), "--offset", "earliest"),
            *("--max-messages", str(count), "--timeout-ms", str(int(DEADLINE_S * 1000))),
            *("--property", "print.offset=true", "--property", f"key.separator={_SEPARATOR}"),
            # A poll returns none of its records if a later one claims two gigabytes: OutOfMemoryError.
            *("--consumer-property", "max.poll.records=1"),
        ],
        env={**os.environ, "CLASSPATH": os.pathsep.join(map(str, jars.KAFKA.ensure(None)))},
        capture_output=True,
        timeout=2 * DEADLINE_S,
    )
    lines = done.stdout.decode(errors="replace").splitlines()
    said = "\n".join([done.stderr.decode(), *(line for line in lines if not line.startswith(_OFFSET))])
    pairs = (line.removeprefix(_OFFSET).split(_SEPARATOR, 1) for line in lines if line.startswith(_OFFSET))
    found = [(int(offset), value) for offset, value in pairs]
    assert (done.returncode, len(found)) == (0, count), said
    return found


def run_tool(tool: str, address: str, *arguments: str) -> str:
    """What one of Kafka's tools prints.

    Args:
        tool: its class.
    """
    command = [str(java.for_broker()), "-XX:TieredStopAtLevel=1", tool, "--bootstrap-server", address, *arguments]
    environment = {**os.environ, "CLASSPATH": os.pathsep.join(map(str, jars.KAFKA.ensure(None)))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
