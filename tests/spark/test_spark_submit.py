"""The jobs under ``spark-submit``, on a standalone cluster of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from tests.harness.records import Request
from tests.harness.spark_cluster import SparkCluster
from tests.harness.system import System
from tests.spark.test_audit import Engine
from timers.spark import __main__ as script

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def arguments_of_the_command(directory: Path) -> list[str]:
    """What ``timers spark jars --submit`` prints."""
    command = [sys.executable, "-m", "timers.cli.main", "spark", "jars", "--submit"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=directory, check=True)
    return done.stdout.split()


def environment(**more: str) -> dict[str, str]:
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def submit(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SUBMIT), *arguments],
        env=environment(**more),
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=600,
    )


def test_an_audit_that_spark_submit_starts_finds_what_is_lost(
    broker_address: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The settings of spark-submit hold, and the jars of the project are added to those of the user."""
    system = System(broker_address, tmp_path)
    request.addfinalizer(system.close)
    system.create_own_topics()
    target, past = system.target(), int(time.time()) - 300
    fired, lost = system.send(Request(target, past, "fired"), Request(target, past, "lost"))
    engine = Engine(system)
    engine.fire(fired)
    engine.flush()
    cluster = SparkCluster(tmp_path / "cluster", workers=1)
    request.addfinalizer(cluster.close)
    settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.sql.shuffle.partitions=3")
    conf = [part for setting in settings for part in ("--conf", setting)]
    arguments = ["--master", cluster.url, "--name", "my-audit", *conf, *arguments_of_the_command(tmp_path)]
    done = submit(tmp_path, *arguments, "audit", "--json", "--output", str(tmp_path / "out"), **system.environment)
    assert done.returncode == 3, done.stdout + done.stderr
    # spark-submit sends the output and the messages of the job to its own output.
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said["offenders"] == {"lost": [lost.source]} and said["statuses"]["fired"] == 1
    assert (tmp_path / "out" / "tables" / "offenders").is_dir()


def test_without_the_jars_one_sentence_says_how_to_start(broker_address: str, tmp_path: Path) -> None:
    done = submit(tmp_path, "--master", "local[1]", script.__file__, "hold", "--once", TIMERS_BROKERS=broker_address)
    assert done.returncode == 1
    assert "timers: spark-submit was started without the Kafka connector and Delta" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
