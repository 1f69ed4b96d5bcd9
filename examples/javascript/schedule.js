// Schedules a timer and prints its id. Arguments: callback topic, key, value, delay in seconds.

import { randomInt } from "node:crypto";
import { Kafka, logLevel } from "kafkajs";

if (process.argv.length !== 6) {
  console.error("usage: node schedule.js TOPIC KEY VALUE SECONDS");
  process.exit(2);
}
const [callbackTopic, callbackKey, value, seconds] = process.argv.slice(2);
const brokers = (process.env.TIMERS_BROKERS ?? "127.0.0.1:9092").split(",");
const topic = process.env.TIMERS_REQUEST_TOPIC ?? "timer-request";

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
    messages: [
      {
        key: String(dueS),
        value,
        // The callback has the other headers of the request.
        headers: { "timer-topic": callbackTopic, "timer-key": callbackKey, "sent-by": "javascript" },
      },
    ],
  });
  console.log(`${topic}/${partition}/${baseOffset}`);
} finally {
  await producer.disconnect();
}
