"""``python -m timers.broker.relock``: resolve ``jgo.toml`` and write ``jgo.lock.toml`` (part of ``make lock``).

It writes only versions and hashes. ``jgo lock`` would also download a Java 11 to sort jars into modules, which a class
path does not need.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from jgo.env import EnvironmentBuilder, EnvironmentSpec, LockFile

from timers.broker.jars import LOCK, SPEC, maven


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        context = maven(Path(scratch))
        builder = EnvironmentBuilder(context=context, cache_dir=Path(scratch))
        wanted = builder.spec_to_dependencies(EnvironmentSpec.load(SPEC))
        inputs, transitive = context.resolver.resolve(wanted)
        needed = [*inputs, *(dep for dep in transitive if dep.scope in ("compile", "runtime"))]
        LockFile.from_resolved_dependencies(needed).save(LOCK)
    print(f"{LOCK.name}: {len(needed)} jars")


if __name__ == "__main__":
    main()
