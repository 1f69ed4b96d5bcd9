"""A worker that fails at some records, while a file exists: ``python -m tests.harness.poisoned_worker FILE ...``.

The other arguments are those of ``faust``. A request whose value contains :data:`UNREADABLE` cannot be accepted, and a
timer whose callback contains :data:`UNSENDABLE` cannot fire.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.process import python
from tests.harness.worker import COMMAND, Worker

UNREADABLE = b"a poison that cannot be read"
UNSENDABLE = b"a poison that cannot be sent"


class Poisoned(Exception):
    """An exception that no code of the worker expects."""


class PoisonedWorker(Worker):
    """A worker that runs this module.

    Attributes:
        poison: the worker fails while this file exists.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        super().__init__(directory, environment)
        self.poison = directory / "poison"
        self.poison.touch()

    def _command(self) -> list[str]:
        _, *arguments = COMMAND
        more = [*arguments, "-l", self.log_level, "--web-port", str(self.port)]
        return python("tests.harness.poisoned_worker", str(self.poison), *more)


def install(poison: Path) -> None:
    """Let this process fail while ``poison`` exists."""
    from timers.core.reading import RecordDecoder
    from timers.machines.firing.transaction import Transaction

    read, send = RecordDecoder.decode, Transaction.send

    def read_or_fail(self: RecordDecoder, records: Sequence[Any], *arguments: Any) -> Any:
        if any(UNREADABLE in (record.value or b"") for record in records) and poison.exists():
            raise Poisoned("a record of this fetch")
        return read(self, records, *arguments)

    def send_or_fail(self: Transaction, topic: str, partitions: int, due: Sequence[Any]) -> None:
        if any(UNSENDABLE in row[3] for _, rows in due for row in rows) and poison.exists():
            raise Poisoned("a timer of this second")
        send(self, topic, partitions, due)

    RecordDecoder.decode = read_or_fail  # type: ignore[method-assign, assignment]
    Transaction.send = send_or_fail  # type: ignore[method-assign]


if __name__ == "__main__":
    from faust.cli.faust import cli

    install(Path(sys.argv.pop(1)))
    cli()
