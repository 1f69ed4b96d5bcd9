#!/usr/bin/env bash
# In a log of Kafka 4, the marker that commits a transaction has another producer epoch than the records that it commits, if the
# producer speaks transactions of version 2; in the same log it has the same epoch if the producer speaks version 1.
#
# One would expect that records and marker have producer id and epoch in common, as they always had, and that an epoch above
# the one of the records means that another producer has fenced theirs. With version 2 the epoch rises at the end of each transaction,
# and the marker has the new one, which is also that of the next records. Who pairs them by both pairs a marker with the transaction
# that follows. The id alone is right. Sequence numbers begin at 0 each time.
#
# Seen with Kafka 4.4.0 on Java 17; two transactions of kafka-clients 4.4.0 (version 2) and of confluent-kafka 2.16.1 (version 1).
# Prints, from the log's files: "kafka-clients: record 0, marker 1, record 1, marker 2" and
# "confluent-kafka: record 0, marker 0, record 0, marker 0", with epochs.
# What it means for us: what reads meaning into epochs does so by the id (docs/adr/0044-transactions-of-version-two.md).
# Needs Java, Maven and the indexes of packages; starts a broker on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'kill "${pid:-}" 2>/dev/null && wait "$pid" || true; rm -rf "$target"' EXIT
cd "$target"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check 'confluent-kafka==2.16.1'
printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>f</groupId>
<artifactId>f</artifactId><version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId>
<artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency></dependencies></project>' >pom.xml
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars >log
read -r broker controller < <(python3 -c 'import socket; a, b = (socket.create_server(("127.0.0.1", 0)) for _ in "ab")
print(a.getsockname()[1], b.getsockname()[1])')
printf '%s\n' process.roles=broker,controller node.id=1 "controller.quorum.voters=1@127.0.0.1:$controller" \
    "listeners=PLAINTEXT://127.0.0.1:$broker,CONTROLLER://127.0.0.1:$controller" controller.listener.names=CONTROLLER \
    "log.dirs=$target/data" offsets.topic.replication.factor=1 transaction.state.log.replication.factor=1 \
    transaction.state.log.min.isr=1 transaction.state.log.num.partitions=1 >server.properties
java -cp 'jars/*' kafka.tools.StorageTool format --cluster-id q1Sh-9_ISia_zwGINzRvyQ --config server.properties >>log 2>&1
java -Xmx512m -cp 'jars/*' kafka.Kafka server.properties >>log 2>&1 &
pid=$!
cat >Transactions.java <<'PROGRAM'
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    public static void main(String[] brokers) {
        Map<String, Object> config = Map.of("bootstrap.servers", brokers[0], "transactional.id", "kafka-clients");
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (String value : new String[] {"first", "second"}) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("kafka-clients", 0, null, value));
                producer.commitTransaction();
            }
        }
    }
}
PROGRAM
cat >program.py <<'PROGRAM'
import struct
import sys
import time
from pathlib import Path

from confluent_kafka import Producer

HEAD = struct.Struct(">qiibIhiqqqh")  # of a batch, up to the producer's epoch
IS_MARKER = 0x20

producer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "confluent-kafka"})
producer.init_transactions(60)
for value in ("first", "second"):
    producer.begin_transaction()
    producer.produce("confluent-kafka", value, partition=0)
    producer.commit_transaction(60)


def batches(topic):
    log, at = Path(f"data/{topic}-0/{0:020}.log").read_bytes(), 0
    while at < len(log):
        head = HEAD.unpack_from(log, at)
        yield ("marker" if head[5] & IS_MARKER else "record", head[10])
        at += 12 + head[1]


for topic in ("kafka-clients", "confluent-kafka"):
    deadline_s = time.monotonic() + 30
    while len(seen := [*batches(topic)]) < 4 and time.monotonic() < deadline_s:  # the last marker may come a moment later
        time.sleep(0.1)
    print(f"{topic}:", ", ".join(f"{kind} {epoch}" for kind, epoch in seen))
PROGRAM
java -cp 'jars/*' Transactions.java "127.0.0.1:$broker" >>log 2>&1 || { tail -n 30 log >&2; exit 1; }
seen=$(venv/bin/python program.py "127.0.0.1:$broker" 2>>log) || { tail -n 30 log >&2; exit 1; }
expected="kafka-clients: record 0, marker 1, record 1, marker 2
confluent-kafka: record 0, marker 0, record 0, marker 0"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
