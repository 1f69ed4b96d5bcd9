"""A task that notes in a file that it has run. It has its own environment: ../test_celery_delays.py."""

import json
import os
from pathlib import Path

from celery import Celery  # type: ignore[import-not-found,unused-ignore]

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(json.loads(os.environ["CONFIGURATION"]))


@app.task  # type: ignore[untyped-decorator,unused-ignore]
def note(name: str) -> None:
    with Path(os.environ["RUNS"]).open("a") as file:
        file.write(f"{name}\n")
