#!/usr/bin/env bash
# In one Spark program a naive datetime in a column of type timestamp is one of three instants: by the zone of the Python process, by
# spark.sql.session.timeZone, or in UTC. It depends on the way by which it comes.
#
# One would expect the zone of the session, which Spark uses to read and to print times. A frame of pandas and a table of Arrow are
# taken so. Rows of Python, what a UDF returns and what a data source written in Python yields are taken in the zone of the process (TZ),
# on a cluster that of each worker. Arrow batches of mapInArrow are taken as UTC. If all three zones are the same, as on most servers,
# nothing shows it.
#
# Seen with pyspark 4.3.0, pandas 3.1.1 and pyarrow 26.0.1 on Python 3.11 and Java 17; TZ is America/New_York, the session's zone
# Europe/Berlin. Prints the hour of 2030-01-01 12:00 in UTC for each way: "rows 17, UDF 17, data source 17, pandas 11, Arrow 11,
# mapInPandas 11, mapInArrow 12".
# What it means for us: what format("timers") hands out has a zone (docs/spark.md#dataframes).
# Needs Java, and the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cd "$target"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pandas==3.1.1' 'pyarrow==26.0.1'
cat >program.py <<'PROGRAM'
from datetime import datetime

import pandas
import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.functions import udf

NOON = datetime(2030, 1, 1, 12)
SCHEMA = "at timestamp"
ZONE = {"spark.sql.session.timeZone": "Europe/Berlin"}
spark = SparkSession.builder.master("local[1]").config(map={"spark.ui.enabled": "false", **ZONE}).getOrCreate()


class Reader(DataSourceReader):
    def read(self, partition):
        yield (NOON,)


class Source(DataSource):
    @classmethod
    def name(cls):
        return "finding"

    def schema(self):
        return SCHEMA

    def reader(self, schema):
        return Reader()


def in_pandas(batches):
    for _ in batches:
        yield pandas.DataFrame({"at": [NOON]})


def in_arrow(batches):
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"at": pyarrow.array([NOON], pyarrow.timestamp("us"))})


spark.dataSource.register(Source)
one = spark.range(1)
frames = {
    "rows": spark.createDataFrame([(NOON,)], SCHEMA),
    "UDF": one.select(udf(lambda _: NOON, "timestamp")("id").alias("at")),
    "data source": spark.read.format("finding").load(),
    "pandas": spark.createDataFrame(pandas.DataFrame({"at": [NOON]}), SCHEMA),
    "Arrow": spark.createDataFrame(pyarrow.table({"at": [NOON]}), SCHEMA),
    "mapInPandas": one.mapInPandas(in_pandas, SCHEMA),
    "mapInArrow": one.mapInArrow(in_arrow, SCHEMA),
}
hours = {way: frame.selectExpr("unix_timestamp(at) DIV 3600 % 24").first()[0] for way, frame in frames.items()}
print(", ".join(f"{way} {hour}" for way, hour in hours.items()))
PROGRAM
seen=$(TZ=America/New_York PYSPARK_PYTHON="$target/venv/bin/python" venv/bin/python program.py 2>log) || { tail -n 30 log >&2; exit 1; }
expected="rows 17, UDF 17, data source 17, pandas 11, Arrow 11, mapInPandas 11, mapInArrow 12"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
