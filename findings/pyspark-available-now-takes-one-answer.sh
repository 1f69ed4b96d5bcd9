#!/usr/bin/env bash
# A stream of a simple reader in Python, with the trigger availableNow, ends after its first answer, and a batch of the same source
# has all of it.
#
# With availableNow a query reads what is there when it starts, in as many batches as it needs, and ends. A SimpleDataSourceStreamReader
# gives what comes next, and an empty answer when nothing is left; one would expect that it is asked until then. It is asked once in
# each run, and the query ends without an error. A job that runs each hour so falls behind, if an answer is limited in size. A
# DataSourceStreamReader, which names its newest offset, is read to the end.
#
# Seen with pyspark 4.3.0 and pyarrow 26.0.1 on Python 3.11 and Java 17; a source of ten records, whose simple reader gives two at a
# time, and three runs with one checkpoint. Prints: "simple: 2 2 2, other: 10 0 0", records of each run.
# What it means for us: a source of yours that a job writes to format("timers") needs the other reader (docs/spark.md#dataframes).
# Needs Java, and the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cd "$target"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pyarrow==26.0.1'
cat >program.py <<'PROGRAM'
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

COUNT, AT_ONCE = 10, 2
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def rows(first, end):
    return [(number,) for number in range(first, end)]


class Simple(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"next": 0}

    def read(self, start):
        end = min(start["next"] + AT_ONCE, COUNT)
        return iter(rows(start["next"], end)), {"next": end}

    def readBetweenOffsets(self, start, end):
        return iter(rows(start["next"], end["next"]))

    def commit(self, end):
        pass


class Other(DataSourceStreamReader):
    def initialOffset(self):
        return {"next": 0}

    def latestOffset(self):
        return {"next": COUNT}

    def partitions(self, start, end):
        return [InputPartition((start["next"], end["next"]))]

    def read(self, partition):
        yield from rows(*partition.value)

    def commit(self, end):
        pass


class SimpleSource(DataSource):
    @classmethod
    def name(cls):
        return "simple"

    def schema(self):
        return "number int"

    def simpleStreamReader(self, schema):
        return Simple()


class OtherSource(SimpleSource):
    @classmethod
    def name(cls):
        return "other"

    def streamReader(self, schema):
        return Other()


def run(name):
    """Records that a run reads."""
    read = []
    writer = spark.readStream.format(name).load().writeStream.option("checkpointLocation", f"checkpoint-{name}")
    query = writer.foreachBatch(lambda frame, _: read.append(frame.count())).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(read)


said = []
for source in (SimpleSource, OtherSource):
    spark.dataSource.register(source)
    said.append(f"{source.name()}: {' '.join(str(run(source.name())) for _ in range(3))}")
print(", ".join(said))
PROGRAM
seen=$(PYSPARK_PYTHON="$target/venv/bin/python" venv/bin/python program.py 2>log) || { tail -n 30 log >&2; exit 1; }
expected="simple: 2 2 2, other: 10 0 0"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
