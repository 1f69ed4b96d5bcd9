"""Fixtures of the Spark tests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.audit_world import AuditedSystem
from timers.spark import jvm


@pytest.fixture
def audited(broker_address: str, tmp_path: Path) -> Iterator[AuditedSystem]:
    system = AuditedSystem(broker_address, tmp_path)
    yield system
    system.close()


class UnopenedFiles:
    """A file system of Hadoop in which no file can be opened: Java has one name for this, whatever the reason is."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def open(self, path: Any) -> Any:
        return self._files.open(path.suffix("-not-there"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A block in which no file can be opened, as if the process had too many of them open."""
    on_storage = jvm.on_storage

    def asked(spark: SparkSession, directory: str) -> tuple[Any, Any]:
        path, files = on_storage(spark, directory)
        return path, UnopenedFiles(files)

    @contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(jvm, "on_storage", asked)
            yield

    return block


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
