"""How each command that prints is called over topics whose records hold unsafe text."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from timers.core.printable import printable
from timers.core.timer import Origin
from timers.offline.pending import Head, Writer

UNSAFE = "a\x1b]0;t\x07\u202eb\u2066\u200fc\x9b\u2028d \u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f467"
"""What an id, a key, a topic, a header or a payload of another user may hold; at its end, what must stay whole."""

SHOWN, NOT_AT_ALL = printable(UNSAFE), ""
QUOTED = f"'{SHOWN}'"


class Planted(NamedTuple):
    """What a test has written before the commands are called.

    Attributes:
        target: a topic with one callback.
        queue: a topic and queue with some messages.
        letter: position of a dead letter of a timer.
        folder: for files.
    """

    target: str
    queue: str
    letter: str
    folder: Path

    def file(self, name: str, text: str) -> str:
        """A file in the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


class Walk(NamedTuple):
    """One call of a command.

    Attributes:
        arguments: after the words of the command.
        code: its exit code.
        shows: how it prints the unsafe text: escaped, quoted in a sentence, or not at all.
        again: whether it is called a second time, with ``-o json``, and ends with the same code.
        as_process: in a process of its own, because it runs until a signal.
    """

    arguments: tuple[str, ...]
    code: int = 0
    shows: str = SHOWN
    again: bool = True
    as_process: bool = False


Walks: TypeAlias = Callable[[Planted], list[Walk]]

ID = f"walked {UNSAFE}"


def _schedule(planted: Planted) -> list[Walk]:
    timer = ("--topic", planted.target, "--key", UNSAFE, "--value", UNSAFE, "-H", f"{UNSAFE}=v", "--in", "7d")
    wrong = planted.file("wrong.jsonl", json.dumps({UNSAFE: 1}) + "\n")
    right = planted.file("right.jsonl", json.dumps({"id": f"file {UNSAFE}", "delay": "7d", "value": UNSAFE}) + "\n")
    return [
        Walk((*timer, "--id", ID)),
        Walk((*timer, "--id", ID, "--if-absent"), code=5),
        Walk(("--from-file", wrong, "--topic", planted.target), code=2, shows=QUOTED),
        Walk(("--from-file", right, "--topic", planted.target)),
        Walk(("--topic", UNSAFE, "--in", "7d", "--value", ""), code=2, shows=QUOTED),
    ]


def _unsafe_export() -> str:
    """A file of an export whose timer has a topic with unsafe text."""
    file = io.BytesIO()
    writer = Writer(file, Head(1, UNSAFE, "cluster", True))
    writer.add((0, UNSAFE, "k", b"v", None, None), Origin("t/0/1", 9, 0, "t/0/1"))
    writer.end()
    return file.getvalue().decode()


WALKS: dict[str, Walks] = {
    "schedule": _schedule,
    "list": lambda planted: [
        Walk(()),
        Walk(("--topic", planted.target)),
        Walk(("--values",), code=2, shows=NOT_AT_ALL, again=False),
    ],
    "get": lambda planted: [Walk((ID,)), Walk((f"fired {UNSAFE}",)), Walk((f"none {UNSAFE}",), code=4)],
    "cancel": lambda planted: [Walk((ID,), again=False), Walk((f"none {UNSAFE}",), code=4)],
    "watch": lambda planted: [
        Walk((planted.target, "--from-beginning", "-n", "1")),
        Walk((UNSAFE,), code=2, shows=QUOTED),
    ],
    "topics create": lambda planted: [Walk((UNSAFE,), code=2, shows=QUOTED)],
    "dead-letters list": lambda planted: [Walk(()), Walk(("-n", "0"))],
    "dead-letters show": lambda planted: [Walk((planted.letter,))],
    "dead-letters retry": lambda planted: [
        Walk((planted.letter, "--dry-run"), shows=NOT_AT_ALL),
        Walk((planted.letter, "--yes"), shows=NOT_AT_ALL, again=False),
        Walk((planted.letter, UNSAFE, "--yes"), code=2, shows=QUOTED),
    ],
    "queue send": lambda planted: [
        Walk((planted.queue, "--value", UNSAFE, "--key", UNSAFE, "-H", f"{UNSAFE}=v"), shows=NOT_AT_ALL),
        Walk((planted.queue, "--lines", planted.file("lines", f"fail {UNSAFE}\n" * 2)), shows=NOT_AT_ALL),
    ],
    "queue receive": lambda planted: [
        Walk((planted.queue, "-n", "1", "--wait", "60s")),
        Walk((planted.queue, "-n", "1", "--wait", "60s", "--reject", UNSAFE)),
    ],
    "queue dead": lambda planted: [Walk((planted.queue,))],
    "queue redrive": lambda planted: [Walk((planted.queue, "--all", "--yes"), shows=NOT_AT_ALL)],
    "queue stat": lambda planted: [Walk((planted.queue,), shows=NOT_AT_ALL)],
    "queue list": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "queue run": lambda planted: [
        Walk((planted.queue, "tests.harness.queue_handlers:fail_and_stop"), again=False, as_process=True)
    ],
    "queue purge": lambda planted: [Walk((planted.queue, "--yes"), shows=NOT_AT_ALL)],
    "formats": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "levels": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "targets pause": lambda planted: [
        Walk((planted.target, "--why", UNSAFE), shows=NOT_AT_ALL),
        Walk((UNSAFE,), code=2, shows=QUOTED),
    ],
    "targets list": lambda planted: [Walk(())],
    "targets resume": lambda planted: [
        Walk((planted.target,), shows=NOT_AT_ALL, again=False),
        Walk((UNSAFE,), code=2, shows=QUOTED),
    ],
    "clock": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "log verify": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "snapshots": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "export": lambda planted: [Walk((str(planted.folder / "pending"),), shows=NOT_AT_ALL, again=False)],
    "import-pending": lambda planted: [
        Walk((str(planted.folder / "pending"),), code=1, shows=NOT_AT_ALL),  # it is of the same app
        Walk((planted.file("unsafe", _unsafe_export()),), code=1, shows=QUOTED),
    ],
    "status": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "settings": lambda planted: [Walk((), shows=NOT_AT_ALL)],
    "broker status": lambda planted: [Walk((), code=3, shows=NOT_AT_ALL)],
}
"""Command -> its calls, in this order: a later one may use what an earlier one has written."""

NOT_WALKED = {
    "outbox run": "it runs until a signal; its log quotes what rows hold: tests/unit/test_outbox_relay.py",
    "outbox schema": "it reads no records",
    "worker": "it runs until a signal, and prints its log only: tests/unit/test_logs.py",
    "console": "as the worker; its pages: tests/unit/test_web_unsafe_text.py",
    "run": "it runs until a signal, and prints only callbacks of timers that it has set itself",
    "broker start": "it starts a process, and reads no records",
    "broker stop": "it ends a process, and reads no records",
    "broker reset": "it deletes a folder, and reads no records",
    "acls": "it reads no records",
    "doctor": "it reads its own callback only, and what workers say: tests/broker/test_doctor.py",
    "next": "it reads no records",
    "apply": "it shows timers of its own file, and what differs of them: tests/unit/test_cli_apply.py",
    "spark audit": "it starts Spark; what it prints and its page: tests/unit/test_web_unsafe_text.py",
    "spark engine": "it starts Spark, and prints numbers of records only",
    "spark hold": "it starts Spark, and prints numbers of records and names of topics",
    "spark promote": "as spark hold",
    "spark import": "it starts Spark, and prints numbers of rows; rows that are not valid are in its tables",
    "spark pending": "as spark hold",
    "spark history": "as spark hold",
    "spark jars": "it downloads files, and reads no records",
}
"""Command -> why it has no walk."""
