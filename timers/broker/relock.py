"""``python -m timers.broker.relock``: resolve ``jgo.toml`` and write ``jgo.lock.toml`` (part of ``make lock``)."""

from __future__ import annotations

from timers.broker.jars import KAFKA

if __name__ == "__main__":
    print(KAFKA.relock())
