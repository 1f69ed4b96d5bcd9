"""The jars of Spark's Kafka connector and of Delta, for each version of Spark that the jobs support.

``python -m timers.spark.jars`` renews the locks (part of ``make lock``).
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from timers.errors import SparkError
from timers.process.jars import JarSet

VERSIONS = ("4.0", "4.1", "4.2")
"""Supported versions of Spark; each has a lock."""


def jar_set(version: str = pyspark.__version__) -> JarSet:
    """The jars for a version of Spark.

    Raises:
        SparkError: this version is not supported.
    """
    line = ".".join(version.split(".")[:2])
    if line not in VERSIONS:
        raise SparkError(f"pyspark {version} is not supported: install {' or '.join(f'pyspark {v}' for v in VERSIONS)}")
    return JarSet(f"jars for Spark {line}", Path(__file__).with_name(f"spark-{line}.toml"), SparkError)


if __name__ == "__main__":
    for each in VERSIONS:
        print(jar_set(each).relock())
