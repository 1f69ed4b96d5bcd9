#!/usr/bin/env bash
# A consumer of the new group protocol that joins a classic group ends the assignor that all members of the group have chosen, and no
# member gets an error. If shares have user data, even one byte, the newcomer is refused.
#
# Members of a classic group deal partitions by an assignor that all of them have; a classic member without it is refused. Theirs may
# be of the program's own, such as one that gives all partitions to one member and keeps the others in reserve. One would expect that a
# newcomer that cannot have it is refused, too. By default (group.consumer.migration.policy is bidirectional) the broker makes the
# group one of the new protocol and deals partitions by an assignor of its own, so members in reserve begin to work. Only what the
# assignor writes beside the partitions, its user data, makes the broker keep the assignor.
#
# Seen with Kafka 4.4.0 on Java 17, two members of aiokafka 0.14.0 whose assignor gives all four partitions to the first, and a newcomer
# of confluent-kafka 2.16.1. Prints partitions of each, before and with the newcomer: "without user data: 4 0, then 2 1 1" and
# "with user data: 4 0, then 4 0 0, refused".
# What it means for us: shares of workers have user data (docs/adr/0032-the-classic-group-protocol.md).
# Needs Java, Maven and the indexes of packages; starts a broker on a free local port.
set -euo pipefail
target=$(mktemp -d)
trap 'kill "${pid:-}" 2>/dev/null && wait "$pid" || true; rm -rf "$target"' EXIT
cd "$target"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check 'aiokafka==0.14.0' 'confluent-kafka==2.16.1'
printf '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>f</groupId>
<artifactId>f</artifactId><version>1</version><dependencies><dependency><groupId>org.apache.kafka</groupId>
<artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency></dependencies></project>' >pom.xml
mvn --quiet --batch-mode org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars >log
read -r broker controller < <(python3 -c 'import socket; a, b = (socket.create_server(("127.0.0.1", 0)) for _ in "ab")
print(a.getsockname()[1], b.getsockname()[1])')
printf '%s\n' process.roles=broker,controller node.id=1 "controller.quorum.voters=1@127.0.0.1:$controller" \
    "listeners=PLAINTEXT://127.0.0.1:$broker,CONTROLLER://127.0.0.1:$controller" controller.listener.names=CONTROLLER \
    "log.dirs=$target/data" offsets.topic.replication.factor=1 \
    offsets.topic.num.partitions=1 group.initial.rebalance.delay.ms=0 >server.properties
java -cp 'jars/*' kafka.tools.StorageTool format --cluster-id q1Sh-9_ISia_zwGINzRvyQ --config server.properties >>log 2>&1
java -Xmx512m -cp 'jars/*' kafka.Kafka server.properties >>log 2>&1 &
pid=$!
cat >program.py <<'PROGRAM'
import asyncio
import sys

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

BROKERS = sys.argv[1]
TOPIC = "records"


class AllToTheFirst(AbstractPartitionAssignor):
    name = "all-to-the-first"
    user_data = b""

    @classmethod
    def assign(cls, cluster, members):
        everything = [(TOPIC, sorted(cluster.partitions_for_topic(TOPIC)))]
        shares = {each: everything if each == min(members) else [] for each in members}
        return {each: ConsumerProtocolMemberAssignment(0, share, cls.user_data) for each, share in shares.items()}

    @classmethod
    def metadata(cls, topics):
        return ConsumerProtocolMemberMetadata(0, list(topics), b"")

    @classmethod
    def on_assignment(cls, assignment):
        pass


class WithUserData(AllToTheFirst):
    user_data = b"x"


async def dealt(consumers, expected):
    """Partitions of each as soon as they are as expected, or after 60 s."""
    for _ in range(600):
        seen = sorted((len(each.assignment()) for each in consumers), reverse=True)
        if seen == expected:
            break
        await asyncio.sleep(0.1)
    return " ".join(map(str, seen))


async def tried(assignor, with_newcomer):
    """What two members and a newcomer have, and whether the newcomer is refused."""
    options = {"group_id": assignor.__name__, "heartbeat_interval_ms": 500, "partition_assignment_strategy": (assignor,)}
    members = [AIOKafkaConsumer(TOPIC, bootstrap_servers=BROKERS, **options) for _ in range(2)]
    for member in members:
        await member.start()
    before = await dealt(members, [4, 0])
    newcomer = Consumer({"bootstrap.servers": BROKERS, "group.id": assignor.__name__, "group.protocol": "consumer"})
    newcomer.subscribe([TOPIC])
    errors = []

    async def poll():
        while not errors:
            if (message := await asyncio.to_thread(newcomer.poll, 0.1)) is not None and message.error():
                errors.append(message.error())

    polling = asyncio.create_task(poll())
    if with_newcomer is None:
        await asyncio.wait_for(polling, 60)
    after = await dealt([*members, newcomer], with_newcomer or [4, 0, 0])
    polling.cancel()
    for member in members:
        await member.stop()
    await asyncio.to_thread(newcomer.close)
    return f"{before}, then {after}" + (", refused" if errors else "")


async def main():
    admin = AdminClient({"bootstrap.servers": BROKERS})
    await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result, 60)
    print("without user data:", await tried(AllToTheFirst, [2, 1, 1]))
    print("with user data:", await tried(WithUserData, None))


asyncio.run(main())
PROGRAM
seen=$(venv/bin/python program.py "127.0.0.1:$broker" 2>>log) || { tail -n 30 log >&2; exit 1; }
expected="without user data: 4 0, then 2 1 1
with user data: 4 0, then 4 0 0, refused"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
