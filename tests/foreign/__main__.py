"""Tries clients of other makes against a broker and a worker, and writes what they do into docs/other-clients.md.

    python -m tests.foreign [--only CLIENT,...]

It ends with code 1 if a value differs from the page, which then has the new value.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

from tests.foreign.clients import CLIENTS, Client, build, run, versions
from tests.foreign.tables import PAGE, table, with_tables
from tests.harness import kafka_version
from tests.harness.brokers import ended
from tests.harness.records import Reader
from tests.harness.system import System
from timers.cli.broker import EmbeddedBroker
from timers.wire.key_partition import partition_of

SENT = 300
PLACES = 6
"""Partitions: with a power of two, one client's default is right by chance."""

TIMERS = 100
DUE_AFTER_S = 3600

TRANSACTIONS = 30
EACH = 10
"""Records of a transaction. Every third transaction is aborted, and the two producers of these abort two in a row."""

COMMITTED, ABORTED = b"committed", b"aborted"

READERS = 4
"""So many clients read at a time: each waits for 8 s behind the last record."""


class Sent(NamedTuple):
    """What a client does as a sender."""

    default: int
    configured: int
    """Of :data:`SENT` records, so many are where our clients look for their keys."""
    nulls: dict[str, str]
    """What was sent -> what is in the log."""
    verdicts: dict[str, int]
    """Of cancels, with its defaults."""
    configured_verdicts: dict[str, int]


SPECIAL: list[tuple[bytes, bytes | None, list[tuple[str, str | bytes | None]]]] = [
    (b"null value", None, []),
    (b"empty value", b"", []),
    (b"null header", COMMITTED, [("h", None)]),
    (b"empty header", COMMITTED, [("h", b"")]),
    (b"two headers", COMMITTED, [("h", b"1"), ("h", b"2")]),
]


def write_log(address: str, topic: str) -> None:
    """Write a log with transactions that were committed and aborted."""
    producers = [Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-{each}"}) for each in range(2)]
    for producer in producers:
        producer.init_transactions(30)
    for number in range(TRANSACTIONS):
        producer, is_aborted = producers[number // 6 % 2], number % 6 in (2, 3)
        producer.begin_transaction()
        for index in range(EACH):
            producer.produce(topic, ABORTED if is_aborted else COMMITTED, b"%d-%d" % (number, index))
        producer.flush()
        (producer.abort_transaction if is_aborted else producer.commit_transaction)(30)
    producer = producers[0]
    producer.begin_transaction()
    for key, value, headers in SPECIAL:
        producer.produce(topic, value, key, headers=headers)
    producer.commit_transaction(30)


def _shown(record: Any) -> str:
    """What there is of a special record."""
    key = bytes.fromhex(record["key"] or "").decode()
    names = {None: "null", "": "empty"}
    if key.endswith("value"):
        return names.get(record["value"], "other")
    return " and ".join(names.get(data, bytes.fromhex(data or "").decode()) for _, data in record["headers"]) or "none"


class Read(NamedTuple):
    """What a client does as a receiver."""

    committed: int
    aborted: int
    other: int
    """Records that are neither: markers."""
    kept: dict[str, str]
    """What is in the log -> what the client shows of it."""
    error: str
    """With which it ends before the log does, or nothing."""


def read(client: Client, address: str, topic: str) -> Read:
    """What a client gets from the log."""
    count: Counter[str] = Counter()
    error = ""
    kept = {key.decode(): "missing" for key, _, _ in SPECIAL}
    for line in run(client, "read", address, topic):
        record = json.loads(line)
        if "error" in record:
            error = record["error"]
            continue
        key = bytes.fromhex(record["key"] or "").decode(errors="replace")
        if key in kept:
            kept[key] = _shown(record)
        else:
            value = bytes.fromhex(record["value"] or "")
            count[value.decode() if value in (COMMITTED, ABORTED) else "other"] += 1
    return Read(count[COMMITTED.decode()], count[ABORTED.decode()], count["other"], kept, error)


def sent_right(client: Client, system: System, mode: str) -> int:
    """How many of its records a client sends to the partition of our clients."""
    topic = system.target(PLACES)
    run(client, "send", system.address, topic, mode, str(SENT))
    with closing(Reader(system.address, topic)) as reader:
        # With its defaults kafka-go waits for no answer: what it has sent last may be lost when it ends.
        records = reader.take(SENT) if mode != "default" else reader.take(SENT // 2) + reader.rest()
    return sum(each.partition == partition_of(each.key or b"", PLACES) for each in records)


def sent_nulls(client: Client, system: System) -> dict[str, str]:
    """What is in the log of null and empty values and headers."""
    topic = system.target()
    failed = dict(line.split(": ", 1) for line in run(client, "nulls", system.address, topic))
    found = dict(failed)
    with closing(Reader(system.address, topic)) as reader:
        for each in reader.take(4 - len(failed)):
            headers = [[name, None if data is None else data.hex()] for name, data in each.headers]
            value = None if each.value is None else each.value.hex()
            found[(each.key or b"").decode()] = _shown(
                {"key": (each.key or b"").hex(), "value": value, "headers": headers}
            )
    return found


def cancelled(client: Client, system: System, mode: str, verdicts: Reader) -> dict[str, int]:
    """The verdicts on the cancels of a client that has set as many timers."""
    target = system.target()
    due_s = int(time.time()) + DUE_AFTER_S
    run(client, "timers", system.address, system.settings.id_topic, mode, target, str(due_s), str(TIMERS))
    found = [json.loads(each.value or b"{}")["verdict"] for each in verdicts.take(TIMERS, 180.0)]
    return dict(Counter(found))


def sent(client: Client, system: System, verdicts: Reader) -> Sent:
    """What a client does as a sender."""
    return Sent(
        sent_right(client, system, "default"),
        sent_right(client, system, "configured"),
        sent_nulls(client, system),
        cancelled(client, system, "default", verdicts),
        cancelled(client, system, "configured", verdicts),
    )


def _share(right: int) -> str:
    """How many were right; of some clients, the number differs from run to run."""
    return "all" if right == SENT else "some" if right else "none"


def _verdicts(found: dict[str, int]) -> str:
    return ", ".join(f"{count} `{name}`" for name, count in sorted(found.items()))


def _receives(found: Read) -> str:
    if found.error:
        return f"**cannot**: {found.error}"
    committed = 2 * TRANSACTIONS // 3 * EACH
    if (found.committed, found.aborted, found.other) == (committed, 0, 0):
        return "right"
    # How many depends on where its fetches end.
    some = "all" if found.aborted == TRANSACTIONS // 3 * EACH else "some" if found.aborted else "none"
    lost = "" if found.committed == committed else f"{found.committed} committed ones, "
    return f"**wrong**: {lost}{some} of the aborted ones{', and each marker as a record' if found.other else ''}"


def tables(sent: dict[str, Sent], received: dict[str, Read]) -> dict[str, str]:
    """The tables of the page."""
    version, named = versions(), {each.name: each for each in CLIENTS}
    head = ["client", "options for ids", "ids at the right place: by default, with the options"]
    head += ["verdicts on cancels by default, with the options", "null, empty value", "null, empty header"]
    senders = [
        [
            f"{name} {version[name]}",
            named[name].options or "none",
            f"{_share(each.default)}, {_share(each.configured)}",
            f"{_verdicts(each.verdicts)}; {_verdicts(each.configured_verdicts)}",
            f"{each.nulls['null value']}, {each.nulls['empty value']}",
            f"{each.nulls['null header']}, {each.nulls['empty header']}",
        ]
        for name, each in sent.items()
    ]
    receives = [
        "client",
        "option",
        f"a log with {2 * TRANSACTIONS // 3 * EACH} committed and {TRANSACTIONS // 3 * EACH} aborted records",
    ]
    receives += ["null, empty value", "null, empty header", "two headers of one name"]
    receivers = [
        [
            f"{name} {version[name]}",
            named[name].committed,
            _receives(each),
            f"{each.kept['null value']}, {each.kept['empty value']}",
            f"{each.kept['null header']}, {each.kept['empty header']}",
            each.kept["two headers"],
        ]
        for name, each in received.items()
    ]
    return {"senders": table(head, senders), "receivers": table(receives, receivers)}


def main(arguments: Sequence[str]) -> int:
    """Try the clients. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign")
    parser.add_argument("--only", default="", metavar="CLIENT,...", help="prints what these do, and writes no page")
    kafka_version.add_option(parser)
    chosen = parser.parse_args(arguments).only
    clients = [each for each in CLIENTS if not chosen or each.name in chosen.split(",")]
    for language in sorted({each.language for each in clients}):
        build(language)
    senders: dict[str, Sent] = {}
    with tempfile.TemporaryDirectory() as directory:
        broker = EmbeddedBroker(Path(directory) / "broker", 0)
        with ended(broker):
            address = broker.start()
            system = System(address, Path(directory), TIMERS_PARTITIONS=str(PLACES), **_with_ids())
            with closing(system):
                system.worker().start().ready()
                log = system.target()
                write_log(address, log)
                with ThreadPoolExecutor(READERS) as pool:
                    readings = list(pool.map(partial(read, address=address, topic=log), clients))
                receivers = {client.name: reading for client, reading in zip(clients, readings, strict=True)}
                print(receivers, flush=True)
                with closing(Reader(address, system.settings.verdict_topic)) as verdicts:
                    for client in (each for each in clients if each.is_sender):
                        senders[client.name] = sent(client, system, verdicts)
                        print(client.name, senders[client.name], flush=True)
    written = tables(senders, receivers)
    if chosen:
        print(*written.values(), sep="\n")
        return 0
    before = PAGE.read_text()
    after = with_tables(before, written)
    PAGE.write_text(after)
    if before != after:
        print(f"{PAGE} was not what the clients do: look at what has changed", file=sys.stderr)
    return int(before != after)


def _with_ids() -> dict[str, str]:
    return {"TIMERS_ID_TOPIC": "foreign-by-id", "TIMERS_VERDICT_TOPIC": "foreign-verdict", "TIMERS_APP_ID": "foreign"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
