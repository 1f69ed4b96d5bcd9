#!/usr/bin/env bash
# @platformatic/kafka puts a key on the partition that Kafka's own client for Java would choose if the topic has 2, 4 or 8
# partitions, and on another one for half of all keys if it has 6.
#
# One would expect all or none, since both hash keys by murmur2. Java clears the sign bit of the hash before it takes the
# remainder; the default partitioner of this client takes the hash as an unsigned number. The remainders by powers of two are equal.
# So a test on a topic with four partitions does not see the difference, and two programs with different clients look for a key on
# different partitions. compatibilityPartitioner is right on all.
#
# Seen with @platformatic/kafka 2.12.1 and kafkajs 2.2.4, whose DefaultPartitioner is as Java's, on Node 20; 1,000 keys.
# Prints: "2: 1000, 3: 513, 4: 1000, 6: 513, 8: 1000, 12: 513", partitions and keys on the same one.
# What it means for us: docs/other-clients.md names the option, and is tried on six partitions.
# Needs Node and the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cd "$target"
npm install --silent --no-audit --no-fund '@platformatic/kafka@2.12.1' 'kafkajs@2.2.4'
cat >program.mjs <<'PROGRAM'
import { compatibilityPartitioner, defaultPartitioner } from '@platformatic/kafka'
import kafkajs from 'kafkajs'

const asJava = kafkajs.Partitioners.DefaultPartitioner()
const keys = Array.from({ length: 1000 }, (_, number) => Buffer.from(`id-${number}`))
const same = (choose, count) => {
  const partitionMetadata = Array.from({ length: count }, (_, partitionId) => ({ partitionId, leader: 0 }))
  const java = (key) => asJava({ topic: 'topic', partitionMetadata, message: { key } })
  return keys.filter((key) => Number(choose({}, key)) % count === java(key)).length
}
const counts = [2, 3, 4, 6, 8, 12]
if (counts.some((count) => same(compatibilityPartitioner, count) !== keys.length)) throw new Error('another reference')
console.log(counts.map((count) => `${count}: ${same(defaultPartitioner, count)}`).join(', '))
PROGRAM
seen=$(node program.mjs)
expected="2: 1000, 3: 513, 4: 1000, 6: 513, 8: 1000, 12: 513"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
