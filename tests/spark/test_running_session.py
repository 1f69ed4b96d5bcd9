"""Jobs in a process that has a Spark session already, such as a notebook."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from tests.harness.constants import Constants
from timers.errors import SparkError
from timers.spark import session
from timers.spark.engine.start import claim
from timers.spark.session import Launch

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_a_job_uses_the_session_that_runs_and_leaves_it_as_it_was(spark: SparkSession) -> None:
    earlier = spark.conf.get(ZONE), spark.conf.get(PARTITIONS)
    spark.conf.set(ZONE, "Europe/Berlin")
    spark.conf.set(PARTITIONS, "7")
    try:
        with session.session(Launch("audit", None)) as used:
            assert used.sparkContext is spark.sparkContext
            assert used.conf.get(ZONE) == "UTC", "due days are UTC"
            assert used.conf.get(PARTITIONS) == "7", "the job has no wish"
        assert (spark.conf.get(ZONE), spark.conf.get(PARTITIONS)) == ("Europe/Berlin", "7")
    finally:
        spark.conf.set(ZONE, earlier[0] or "")
        spark.conf.set(PARTITIONS, earlier[1] or "")
    assert spark.range(3).count() == 3
    assert session.has_log()


def test_another_thread_has_the_session_too(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(session.running_session).result()
    assert found is not None and found.sparkContext is spark.sparkContext


@pytest.mark.parametrize(
    "launch",
    [
        Launch("audit", None, master="spark://other:7077"),
        Launch("import", None, defaults={"spark.task.maxFailures": "1"}),
        Launch("audit", None, conf=(("spark.executor.memory", "9g"),)),
    ],
)
def test_what_a_session_cannot_change_any_more_is_said(spark: SparkSession, launch: Launch) -> None:
    zone = spark.conf.get(ZONE)
    with pytest.raises(SparkError, match="has a Spark session already, without spark"), session.session(launch):
        pass
    assert spark.conf.get(ZONE) == zone and spark.range(3).count() == 3


def test_a_session_without_a_data_source_is_refused_in_one_sentence(spark: SparkSession, constants: Constants) -> None:
    constants(session, _SOURCES=("kafka", "delta", "no-such-source"))
    with pytest.raises(SparkError, match="has no data source 'no-such-source'"), session.session(Launch("audit", None)):
        pass
    assert spark.range(3).count() == 3


def test_the_ui_shows_what_the_jobs_of_a_block_are_for(spark: SparkSession) -> None:
    with session.described(spark, "timers audit: outcomes found"):
        assert spark.range(3).count() == 3
    assert spark.range(3).count() == 3
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()  # the jobs are noted after their ends
    jobs = spark._jsparkSession.sparkContext().statusStore().jobsList(None)
    newest_first = [jobs.apply(number).description().toString() for number in range(jobs.size())]
    assert "Some(timers audit: outcomes found)" in newest_first and "timers audit" not in newest_first[0]


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("s3a://bucket/engine", r"Spark failed: .*S3AFileSystem not found: Spark has no connector for s3a://"),
        ("file:///dev/null/engine", r"Spark failed: .*: let this user write there, or name another directory"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_one_sentence_with_a_way_out(
    spark: SparkSession, directory: str, said: str
) -> None:
    with pytest.raises(SparkError, match=said), session.session(Launch("engine", None)) as used:
        claim(used, directory, "timers", "cluster")
