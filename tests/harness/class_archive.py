"""Makes the archive of Kafka's classes, with which the brokers of tests start with half the CPU time.

``python -m tests.harness.class_archive [--kafka VERSION]`` makes it if it is missing. Java ignores an archive that does
not fit.
"""

import argparse
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from tests.harness import kafka_version
from timers.cli.broker import EmbeddedBroker, jars
from timers.process import java
from timers.process.jars import cache_dir

# Brokers of tests live for minutes: what Java would spend on making their code faster costs more than it brings.
OPTIONS = "-XX:TieredStopAtLevel=1"


def path() -> Path:
    """Where the archive is, for these jars of Kafka and this Java."""
    directory = cache_dir()
    runtime = next(java.candidates(), None)
    files = [directory / jar.filename for jar in jars.KAFKA.locked()] + ([] if runtime is None else [runtime.resolve()])
    made_for = [(str(file), file.stat().st_mtime_ns) for file in files if file.exists()]
    return directory / f"classes-{sha256(repr(made_for).encode()).hexdigest()[:12]}.jsa"


def options() -> str:
    """The value of ``KAFKA_OPTS`` for brokers of tests."""
    archive = path()
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else OPTIONS


def main() -> None:
    """Start and stop a broker, whose Java writes the archive at its end."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.class_archive", description=__doc__.split("\n")[0])
    kafka_version.add_option(parser)
    parser.parse_args()
    if path().exists():
        return
    with tempfile.TemporaryDirectory(prefix="timers-classes-") as directory:
        archive = Path(directory) / "classes.jsa"
        os.environ["KAFKA_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={archive}"
        with EmbeddedBroker(Path(directory) / "broker", port=0):
            pass
        if archive.exists():
            beside = path().with_suffix(f".{os.getpid()}")
            beside.write_bytes(archive.read_bytes())
            beside.replace(path())


if __name__ == "__main__":
    main()
