#!/bin/bash
# Starts what a container of deploy/spark/Dockerfile is for: Spark on Kubernetes gives executors the argument `executor`
# and variables, as Spark's own images expect them; a driver gets its command.
set -eu
if [ "${1:-}" != executor ]; then
    exec "$@"
fi
# SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... hold one option each.
mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/[^=]*=//')
exec "$JAVA_HOME/bin/java" ${options[@]+"${options[@]}"} \
    -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-}:$SPARK_HOME/jars/*:${SPARK_CLASSPATH:-}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
