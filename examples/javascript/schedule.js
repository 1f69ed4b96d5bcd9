// Schedules a timer and prints its id. Arguments: callback topic, key, value, delay in seconds.

import { randomInt } from "node:crypto";
import { fileURLToPath } from "node:url";
import { Kafka, logLevel } from "kafkajs";
import protobuf from "protobufjs";

if (process.argv.length !== 6) {
  console.error("usage: node schedule.js TOPIC KEY VALUE SECONDS");
  process.exit(2);
}
const [callBackTopic, callBackKey, value, seconds] = process.argv.slice(2);
const brokers = (process.env.TIMERS_BROKERS ?? "127.0.0.1:9092").split(",");
const topic = process.env.TIMERS_REQUEST_TOPIC ?? "timer-request";

const protos = await protobuf.load(fileURLToPath(new URL("../../protos/timers/v1/future.proto", import.meta.url)));
const Future = protos.lookupType("timers.v1.Future");
const timer = Future.encode({ callBackTopic, callBackKey, callBack: Buffer.from(value) }).finish();

// Due times are whole seconds. The present time is rounded up, so that the delay is never shorter than asked.
const dueS = Math.ceil(Date.now() / 1000) + Number(seconds);

const producer = new Kafka({ brokers, logLevel: logLevel.ERROR }).producer({
  idempotent: true, // a repeated send writes the request once
  // The key is the due second. A random partition spreads the timers of one second over all partitions.
  createPartitioner:
    () =>
    ({ partitionMetadata }) =>
      partitionMetadata[randomInt(partitionMetadata.length)].partitionId,
});
await producer.connect();
try {
  const [{ partition, baseOffset }] = await producer.send({
    topic,
    acks: -1, // an acknowledged request is on all in-sync replicas
    messages: [{ key: String(dueS), value: timer, headers: { "sent-by": "javascript" } }], // the callback has the headers
  });
  console.log(`${topic}/${partition}/${baseOffset}`);
} finally {
  await producer.disconnect();
}
