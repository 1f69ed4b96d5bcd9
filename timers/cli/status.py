"""``timers status``: whether all timers fire, and which worker has which partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.config.settings import Settings

DO_NOT_FIRE_CODE, NOT_KNOWN_CODE = 3, 4

_COLUMNS = ("PARTITION", "WORKER", "STATE", "SINCE", "FROM")
_WIDTHS = (28, 24, 10, 12, 0)


@click.command()
@output_option()
def status(output: Output) -> int:
    """Show whether all timers fire, and for each partition its worker, since when it has it, and from what it began.

    FROM says where the worker had the state of the partition from: its own store, a snapshot, or the log. What
    has said nothing for 2 s is not known.

    Exit codes: 0 all timers fire, 3 some do not, 4 it is not known, 1 the group cannot be asked.
    """
    from timers.console.firing import DO_NOT_FIRE, NOT_KNOWN  # not at the top: it needs the extra `console`

    found = asyncio.run(_look(load_settings()))
    output.table(_COLUMNS, _WIDTHS, _rows(found["workers"]))
    for worker in found["workers"]:
        if worker["ready"] is None:
            say(f"{worker['id']}: {worker['why']}")
    timers, why = found["state"]["timers"], found["state"]["why"]
    sentences = {DO_NOT_FIRE: f"some timers do not fire: {why}", NOT_KNOWN: f"it is not known whether all fire: {why}"}
    say(sentences.get(timers, "all timers fire"))
    return {DO_NOT_FIRE: DO_NOT_FIRE_CODE, NOT_KNOWN: NOT_KNOWN_CODE}.get(timers, 0)


async def _look(settings: Settings) -> dict[str, Any]:
    from timers.console.kafka_cluster import KafkaCluster
    from timers.console.worker_pages import look

    cluster = KafkaCluster(settings)
    try:
        return await look(cluster)
    finally:
        await cluster.close()


def _rows(workers: list[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    for worker in workers:
        machines = worker.get("machines") or {}
        assigned = {f"{topic}/{each}" for topic, numbers in worker["assigned"].items() for each in numbers}
        for name in sorted(assigned | machines.keys()):
            machine = machines.get(name, {})
            state = "unknown" if worker["ready"] is None else "fires" if name in worker["firing"] else "waits"
            age_s, origin = machine.get("age_s"), machine.get("from")
            fields = {"partition": name, "worker": worker["id"], "state": state, "age_s": age_s, "from": origin}
            since = "" if age_s is None else f"{age_s:,.0f} s"
            yield fields, (name, worker["id"], state, since, origin or "")
