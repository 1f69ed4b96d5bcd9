#!/usr/bin/env bash
# A transaction of Kafka 4.4.0 is committed, and one of its partitions never gets the marker: a partition that has no leader while
# the coordinator writes the markers is passed over, as if it had been deleted.
#
# One would expect that the coordinator waits until the partition has a leader again, as Kafka 4.2.1 does in the same program: the
# commit is acknowledged, and the record can be read as soon as the broker is back. With 4.4.0 the record cannot be read by
# read_committed consumers, nor anything behind it, until the same producer ends another transaction in this partition. If this
# next transaction is rolled back, its marker rolls back the committed record, too.
# The cause is read in the classes of the packages: KRaftMetadataCache.getPartitionLeaderEndpoint was rewritten in Java, and answers
# "empty" for a partition without a leader (4.2.1: "no node"). TransactionMarkerChannelManager takes "empty" for a deleted partition
# and logs "these partitions are likely deleted already and hence can be skipped". 4.3.1 has the same source; it was not run.
#
# Seen with Kafka 4.2.1 and 4.4.0 on Java 17, two brokers, one partition with one replica, and confluent-kafka 2.16.1 (transactions of
# version 1). Prints for each of them what read_committed sees after the commit, and after the next transaction was rolled back:
#     4.2.1: committed; read ['first']; then rolled back another one; read ['first']
#     4.4.0: committed; read []; then rolled back another one; read []
# What it means for us: docs/kafka-versions.md, the faults of brokers in transactions.
# Needs Java, Maven and the indexes of packages; starts two brokers on free local ports.
set -euo pipefail
target=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null && wait || true; rm -rf "$target"' EXIT
cd "$target"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check 'confluent-kafka==2.16.1'
cat >program.py <<'PROGRAM'
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

version, brokers, *command = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": brokers})
producer = Producer({"bootstrap.servers": brokers, "transactional.id": "id"})
producer.init_transactions(60)  # the log of transactions is created now, so it is on the first broker


def second_broker():
    return subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)


def wait_for(is_so):
    deadline_s = time.monotonic() + 180
    while not is_so(admin.list_topics(timeout=10)):
        assert time.monotonic() < deadline_s, "this took more than three minutes"
        time.sleep(0.2)


def leader(metadata):
    return metadata.topics["topic"].partitions[0].leader


def read():
    """Returns what can be read within 15 s."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "unused", "auto.offset.reset": "earliest"}  # read_committed
    )
    consumer.assign([TopicPartition("topic", 0, 0)])
    deadline_s, values = time.monotonic() + 15, []
    while time.monotonic() < deadline_s and not values:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


second = second_broker()
try:
    wait_for(lambda metadata: 2 in metadata.brokers)
    admin.create_topics([NewTopic("topic", num_partitions=1, replica_assignment=[[2]])])["topic"].result()
    wait_for(lambda metadata: "topic" in metadata.topics and leader(metadata) == 2)
    producer.begin_transaction()
    producer.produce("topic", "first", partition=0)
    producer.flush()
    second.terminate()
    second.wait()
    wait_for(lambda metadata: leader(metadata) == -1)
    producer.commit_transaction(60)
    time.sleep(2)  # the coordinator looks for the leaders
    second = second_broker()
    wait_for(lambda metadata: leader(metadata) == 2)
    seen = read()
    producer.begin_transaction()
    producer.produce("topic", "second", partition=0)
    producer.flush()
    producer.abort_transaction(60)
    print(f"{version}: committed; read {seen}; then rolled back another one; read {read()}", flush=True)
finally:
    second.terminate()
    second.wait()
PROGRAM
for version in 4.2.1 4.4.0; do
    mkdir "$version"
    cd "$version"
    printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>f</groupId>
<artifactId>f</artifactId><version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId>
<artifactId>kafka_2.13</artifactId><version>%s</version></dependency></dependencies></project>' "$version" >pom.xml
    mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars >log
    read -r one two controller < <(python3 -c 'import socket; ports = [socket.create_server(("127.0.0.1", 0)) for _ in "abc"]
print(*(each.getsockname()[1] for each in ports))')
    common=("controller.quorum.voters=1@127.0.0.1:$controller" controller.listener.names=CONTROLLER
        offsets.topic.replication.factor=1 transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1 transaction.state.log.num.partitions=1)
    printf '%s\n' "${common[@]}" process.roles=broker,controller node.id=1 "log.dirs=$PWD/one" \
        "listeners=PLAINTEXT://127.0.0.1:$one,CONTROLLER://127.0.0.1:$controller" >one.properties
    printf '%s\n' "${common[@]}" process.roles=broker node.id=2 "log.dirs=$PWD/two" \
        "listeners=PLAINTEXT://127.0.0.1:$two" >two.properties
    for each in one two; do
        java -cp 'jars/*' kafka.tools.StorageTool format --cluster-id q1Sh-9_ISia_zwGINzRvyQ --config $each.properties >>log 2>&1
    done
    java -Xmx512m -cp 'jars/*' kafka.Kafka one.properties >>log 2>&1 &
    first=$!
    "$target/venv/bin/python" ../program.py "$version" "127.0.0.1:$one" java -Xmx512m -cp 'jars/*' kafka.Kafka two.properties \
        2>>log | tee -a "$target/lines" || { tail -n 30 log >&2; exit 1; }
    kill "$first"
    wait "$first" || true
    cd ..
done
expected="4.2.1: committed; read ['first']; then rolled back another one; read ['first']
4.4.0: committed; read []; then rolled back another one; read []"
seen=$(cat lines)
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
