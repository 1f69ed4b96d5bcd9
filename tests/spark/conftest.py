"""Fixtures of the Spark tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.audit_world import AuditedSystem


@pytest.fixture
def audited(broker_address: str, tmp_path: Path) -> Iterator[AuditedSystem]:
    system = AuditedSystem(broker_address, tmp_path)
    yield system
    system.close()


@pytest.fixture(autouse=True, scope="module")
def cache_of_a_module() -> Iterator[None]:
    """What fixtures of a module have cached ends with the module."""
    yield
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.catalog.clearCache()


@pytest.fixture(autouse=True)
def nothing_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """A job leaves no DataFrame in Spark's cache: each one makes the later queries of its session slower."""
    spark = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    was_empty = spark is not None and _cache_is_empty(spark)
    yield
    if spark is not None and was_empty:
        assert _cache_is_empty(spark)


def _cache_is_empty(spark: SparkSession) -> bool:
    is_empty: bool = spark._jsparkSession.sharedState().cacheManager().isEmpty()
    return is_empty
