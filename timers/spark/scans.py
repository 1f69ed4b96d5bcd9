"""What a query has read, by Spark's own metrics: files of a table, opened."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def files_read(frame: DataFrame, path: str) -> int:
    """Files of the table at ``path`` that a query opened which has just run.

    Args:
        frame: its result; it must have been collected as it is.
        path: of a Delta table.
    """
    total = 0
    for leaf in _leaves(frame._jdf.queryExecution().executedPlan()):
        if leaf.getClass().getSimpleName() != "FileSourceScanExec":
            continue
        roots = leaf.relation().location().rootPaths()
        if any(_same(str(roots.apply(i)), path) for i in range(roots.size())):
            total += leaf.metrics().apply("numFiles").value()
    return total


def _leaves(plan: Any) -> list[Any]:
    """Leaves of an executed plan, also of the adaptive one and of its stages."""
    name = plan.getClass().getSimpleName()
    if name == "AdaptiveSparkPlanExec":
        return _leaves(plan.executedPlan())
    if name.endswith("QueryStageExec"):
        return _leaves(plan.plan())
    children = plan.children()
    if children.isEmpty():
        return [plan]
    return [leaf for i in range(children.size()) for leaf in _leaves(children.apply(i))]


def _same(found: str, path: str) -> bool:
    """Whether two spellings name one place: ``file:/a`` and ``/a``, ``s3a://b/c`` and itself."""
    one, other = (each.split(":", 1)[-1].strip("/") for each in (found, path))
    return one == other
