"""The stores of the workers of a round, and damage to their files."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.chaos.state import Member, RoundState
from tests.harness import store_damage


def with_largest(state: RoundState, victim: Member, held: Mapping[str, list[int]]) -> Member:
    """Returns the worker with most bytes in tables; a worker that has just started may have no store yet."""
    others = [each for each in state.members if each.name in held and each.wanted and not each.paused]

    def size(member: Member) -> tuple[int, int]:
        stores = _stores(state, member, held)
        return sum(sum(_sizes(store).values()) for store in stores), len(stores)

    return max((victim, *others), key=size)


def damage(state: RoundState, member: Member, held: Mapping[str, list[int]], random: Random) -> str:
    """Damage the stores of the request partitions that a worker holds; return what was done.

    All table files of the first store are damaged in many places, and its CURRENT, so that no opening overlooks it.
    """
    stores = _stores(state, member, held)
    if not stores:
        return "no stores: none was open yet"
    first, *others = stores
    tables = _sizes(first)
    for table in tables:
        with suppress(FileNotFoundError):  # RocksDB has just deleted it
            _flip_each_block(table)
    store_damage.empty(first / "CURRENT", random)
    done = [f"{sum(tables.values()):,} bytes of sst, and CURRENT"]
    for store in others:
        with suppress(FileNotFoundError):
            done.append(store_damage.damage(store, random))
    return f"{len(stores)} damaged stores ({', '.join(done)})"


def _stores(state: RoundState, member: Member, held: Mapping[str, list[int]]) -> list[Path]:
    """Directories of the stores of the request partitions that a worker holds."""
    topic, data_dir = state.system.request_topic, member.worker.data_dir
    return [file.parent for partition in held[member.name] for file in data_dir.glob(f"**/{topic}/{partition}/CURRENT")]


def _sizes(directory: Path) -> dict[Path, int]:
    """Size of each table file below a directory."""
    sizes = {}
    for table in sorted(directory.rglob("*.sst")):
        with suppress(FileNotFoundError):
            sizes[table] = table.stat().st_size
    return sizes


def _flip_each_block(table: Path, every: int = 8192, size: int = 64) -> None:
    with table.open("r+b") as file:
        for at in range(0, table.stat().st_size, every):
            file.seek(at)
            data = file.read(size)
            file.seek(at)
            file.write(bytes(byte ^ 0xFF for byte in data))
