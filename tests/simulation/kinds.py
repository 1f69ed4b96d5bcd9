"""All simulators: what each proves, its runs in the tests, and the broken rules that it must find.

``python -m tests.simulation --list`` prints them. ``python -m tests.simulation --of KIND --seeds 300`` does further
runs of one, and ``python -m tests.simulation --of KIND 421`` repeats a run. A run ends with an exception if a promise
was broken.

A simulator has a file of its own. So have the broken rules (``..._mutations``), which ``edits`` makes and ``search``
looks for, and what must come of a run (``..._oracle``, ``..._checks``, ``..._log``, ``checkers``). ``kit`` is the
simulated world: log, clock, store, worker. ``days`` runs the machines for simulated days.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.simulation import (
    loss_mutations,
    marker_mutations,
    mutation_table,
    queue_mutations,
    repeat_mutations,
    snapshot_mutations,
    spark_losses,
    spark_mutations,
    spark_snapshots,
    transaction_mutations,
)
from tests.simulation.edits import QUEUE_ROOMS, ROOMS, SPARK_ROOMS, TRANSACTION_ROOMS, Mutation
from tests.simulation.kit.faults import Violation
from tests.simulation.loss_simulator import LossSimulator
from tests.simulation.marker_simulator import MarkerSimulator
from tests.simulation.queue_simulator import QueueSimulator
from tests.simulation.repeat_simulator import RepeatSimulator
from tests.simulation.repeat_years import RepeatYears
from tests.simulation.simulator import Simulator
from tests.simulation.snapshot_simulator import SnapshotLossSimulator, SnapshotSimulator
from tests.simulation.spark_losses import LosingSpark
from tests.simulation.spark_simulator import SchedulingSpark, SimSpark
from tests.simulation.spark_snapshots import SnapshotSpark
from tests.simulation.transaction_simulator import HAPPENS, AllTransactions


class Kind(NamedTuple):
    """A simulator."""

    proves: str
    simulator: Callable[..., Any]
    """Makes the run of a seed; ``run`` does it."""
    later: range
    """Seeds of ``make test-all``: each one here begins a part, which has all seeds up to the next part. ``make test``
    has the seeds below."""
    at_least: Mapping[str, int] | None = None
    """What must happen more often than so many times in the runs of ``make test``: runs in which something is rare find
    no bugs in it. None: a test file has runs of its own."""
    mutations: Mapping[str, Mutation] = {}
    rooms: tuple[str, ...] = ROOMS
    """Where the mutations break rules."""
    found_by: type[Exception] = Violation
    """What a run raises that finds a mutation."""
    are_runs_quick: bool = False
    are_mutations_quick: bool = False
    """Whether ``make check`` has them."""


KINDS = {
    "machines": Kind(
        "timers with and without ids, schedules, cold timers, dead letters and pauses keep the promises of "
        "docs/design.md while workers crash, lose partitions and disks, and clocks go wrong",
        Simulator,
        range(60, 6000, 60),
        mutations=mutation_table.MUTATIONS,
    ),
    "markers": Kind(
        "a message with a marker is delivered again when its lease ends, and not before",
        MarkerSimulator,
        range(20, 3020, 300),
        {"markers": 150, "fired": 100},
        marker_mutations.MUTATIONS,
        are_mutations_quick=True,
    ),
    "repeats": Kind(
        "each second of the rule of a repeating timer is sent once, or missed once",
        RepeatSimulator,
        range(10, 1010, 100),
        {"occurrences": 5},
        repeat_mutations.MUTATIONS,
    ),
    "years": Kind("the same over years, with other zone data and restored snapshots", RepeatYears, range(4, 4)),
    "losses": Kind(
        "a request log that loses its end, and grows again, loses no timer in silence",
        LossSimulator,
        range(14, 4334, 360),
        {"cuts": 14, "accepted": 7, "letters": 3, "fired": 100},
        loss_mutations.MUTATIONS,
    ),
    "snapshots": Kind(
        "a worker that restores a snapshot loses no timer and fires none twice",
        SnapshotSimulator,
        range(8, 4328, 360),
        {"restores": 16, "snapshots restored": 32, "losses noticed": 3, "fired": 100},
        snapshot_mutations.MUTATIONS,
    ),
    "snapshot-losses": Kind(
        "the same while request logs lose their ends",
        SnapshotLossSimulator,
        range(8, 4328, 360),
        {"restores": 3},
        snapshot_mutations.LOSS_MUTATIONS,
    ),
    "queues": Kind(
        "the ledgers of a queue lose no message, and acknowledge none that is open",
        QueueSimulator,
        range(15, 3015, 300),
        {"generations": 200, "acknowledged": 100, "guarded": 5, "returned": 5},
        queue_mutations.MUTATIONS,
        QUEUE_ROOMS,
        are_runs_quick=True,
    ),
    "transactions": Kind(
        "the producer of a machine commits each value once, with its offsets, in both versions of transactions",
        AllTransactions,
        range(3, 2003, 200),
        dict.fromkeys(HAPPENS, 3),
        transaction_mutations.MUTATIONS,
        TRANSACTION_ROOMS,
        AssertionError,
        are_runs_quick=True,
    ),
    "spark": Kind(
        "the engine on Spark keeps the promises when tasks fail, run twice, and lose checkpoints and disks",
        SimSpark,
        range(8, 448, 40),
        mutations=spark_mutations.MUTATIONS,
        rooms=SPARK_ROOMS,
        found_by=Exception,
    ),
    "spark-ends": Kind(
        "the same while its own transactions hold back the ends of its logs",
        SchedulingSpark,
        range(2, 322, 40),
        {"ends asked again": 10, "tombstones": 10},
        are_runs_quick=True,
    ),
    "spark-losses": Kind(
        "the engine on Spark notices that a request log has lost its end, and loses no timer in silence",
        LosingSpark,
        range(8, 888, 80),
        dict.fromkeys(("cuts", "stopped", "accepted", "letters", "lost checkpoints"), 0),
        spark_losses.MUTATIONS,
        SPARK_ROOMS,
    ),
    "spark-snapshots": Kind(
        "the engine on Spark takes, names and restores snapshots as a worker does",
        SnapshotSpark,
        range(4, 444, 40),
        {"snapshots restored": 10, "snapshots compared": 10, "logs trimmed": 10, "takeovers": 0},
        spark_snapshots.MUTATIONS,
        SPARK_ROOMS,
        are_mutations_quick=True,
    ),
}
