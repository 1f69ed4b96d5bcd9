// Prints each callback of a topic once. Arguments: callback topic, consumer group. Ctrl-C ends it.

import { Kafka, logLevel } from "kafkajs";

import { traced } from "./traced.js";

if (process.argv.length !== 4) {
  console.error("usage: node receive.js TOPIC GROUP");
  process.exit(2);
}
const [topic, groupId] = process.argv.slice(2);
const brokers = (process.env.TIMERS_BROKERS ?? "127.0.0.1:9092").split(",");

const consumer = new Kafka({ brokers, logLevel: logLevel.ERROR }).consumer({
  groupId,
  // The default. With `true`, callbacks arrive that a worker has taken back: it fires them once more.
  readUncommitted: false,
});
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => consumer.disconnect());
await consumer.run({
  autoCommit: false,
  eachMessage: async (received) => {
    const { topic, partition, message: { offset, headers, key, value } } = received;
    // It names what has fired, and is the same each time a callback is read. The id of a timer may be used again.
    const name = headers["timer-source"] ?? headers["timer-id"];
    if (name !== undefined) {
      // Keep the name in the transaction of your own work, and leave out a callback whose name is there already.
      await traced(received, groupId, async () => console.log(`${name} ${key} ${value}`));
    } // else another program has written it
    // After the work: a receiver that is killed before this gets the same callback again.
    await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(offset) + 1n) }]);
  },
});
