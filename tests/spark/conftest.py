"""One Spark session for all tests of the layer: a start costs ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.spark_job import FAST
from tests.spark.audit_world import AuditedSystem
from timers.spark.session import Launch, start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the Kafka connector and Delta."""
    directory = tmp_path_factory.mktemp("spark")
    settings = {**FAST, "spark.sql.warehouse.dir": str(directory / "warehouse")}
    session = start(Launch("tests", directory / "spark.log", "local[2]", defaults=settings))
    yield session
    session.stop()


@pytest.fixture
def audited(broker_address: str, tmp_path: Path) -> Iterator[AuditedSystem]:
    system = AuditedSystem(broker_address, tmp_path)
    yield system
    system.close()
