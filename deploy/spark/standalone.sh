#!/bin/sh
# The engine on a Spark standalone cluster: the driver runs here, the work on the cluster's workers.
#
#   SPARK_MASTER=spark://master:7077 TIMERS_BROKERS=broker:9092 CHECKPOINT=hdfs:///timers/engine deploy/spark/standalone.sh
#
# The workers need Python with kafka-timers[spark] of the same versions, by the path that PYSPARK_PYTHON says.
set -eu
: "${SPARK_MASTER:?such as spark://master:7077}" "${TIMERS_BROKERS:?such as broker:9092}"
: "${CHECKPOINT:?a directory that driver and all executors reach, such as hdfs:///timers/engine}"
export PYSPARK_PYTHON="${PYSPARK_PYTHON:-python3}"
# As many buckets as the cores that the engine may use, and at most as many as the request topic has partitions.
exec timers spark engine --master "$SPARK_MASTER" --checkpoint "$CHECKPOINT" --buckets "${BUCKETS:-8}" \
    --conf spark.cores.max="${CORES:-8}" \
    --conf spark.executor.memory=2g \
    "$@"
