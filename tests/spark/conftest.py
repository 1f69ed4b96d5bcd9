"""Fixtures of the Spark tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.audit_world import AuditedSystem


@pytest.fixture
def audited(broker_address: str, tmp_path: Path) -> Iterator[AuditedSystem]:
    system = AuditedSystem(broker_address, tmp_path)
    yield system
    system.close()
