#!/usr/bin/env bash
# kafka-go, with IsolationLevel: ReadCommitted, gives the records of aborted transactions, and the markers of transactions as messages.
#
# Its documentation says that only records without a transaction and committed ones are visible then, and clients that were tried
# beside it give only these. A broker sends all records below the last stable offset, and a list of aborted transactions; it is the
# client that has to leave them out, and markers too. A marker arrives as a message whose value is six bytes long.
#
# Seen with kafka-go 0.4.51, Kafka 4.2.1, Java 17; franz-go 1.22.3 writes 3 records, aborts 2, and writes the last one.
# Prints: "committed 3, aborted 2, markers 2, last 1".
# What it means for us: docs/other-clients.md#receive-callbacks says which clients keep the promise, and what to do with this one.
# Needs Java, Maven, Go and their registries; starts a broker on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'kill "${pid:-}" 2>/dev/null && wait "$pid" || true; chmod -R u+w "$target"; rm -rf "$target"' EXIT
cd "$target"
printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>f</groupId>
<artifactId>f</artifactId><version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId>
<artifactId>kafka_2.13</artifactId><version>4.2.1</version></dependency></dependencies></project>' >pom.xml
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
printf 'module finding\n\ngo 1.24\n\nrequire github.com/segmentio/kafka-go v0.4.51\nrequire github.com/twmb/franz-go v1.22.3\n' >go.mod
cat >main.go <<'PROGRAM'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	producer, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID("id"),
		kgo.DefaultProduceTopic("records"), kgo.AllowAutoTopicCreation())
	check(err)
	for _, values := range [][]string{{"committed", "committed", "committed"}, {"aborted", "aborted"}, {"last"}} {
		check(producer.BeginTransaction())
		for _, value := range values {
			check(producer.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
		}
		check(producer.EndTransaction(ctx, kgo.TransactionEndTry(values[0] != "aborted")))
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: os.Args[1:], Topic: "records", IsolationLevel: kafka.ReadCommitted})
	seen := map[string]int{}
	for seen["last"] == 0 {
		message, err := reader.ReadMessage(ctx)
		check(err)
		seen[string(message.Value)]++
	}
	marker := string(make([]byte, 6))
	fmt.Printf("committed %d, aborted %d, markers %d, last %d\n", seen["committed"], seen["aborted"], seen[marker], seen["last"])
}
PROGRAM
seen=$(GOFLAGS=-mod=mod GOPATH="$target/go" go run . "127.0.0.1:$broker" 2>>log) || { tail -n 30 log >&2; exit 1; }
expected="committed 3, aborted 2, markers 2, last 1"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
