// Does the same with each Kafka client of Node: see ../README.md for its arguments.
import { Consumer, Producer, ProduceAcks, compatibilityPartitioner } from '@platformatic/kafka'
import kafkajs from 'kafkajs'

const IDLE_MS = 8000

// @platformatic/kafka needs it, and Node has it from version 22 on.
Promise.withResolvers ??= () => {
  const found = {}
  found.promise = new Promise((resolve, reject) => Object.assign(found, { resolve, reject }))
  return found
}

const [name, command, brokers, topic, ...rest] = process.argv.slice(2)

const bytes = (data) => (data === null || data === undefined ? null : Buffer.from(data))
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('hex'))

/** Waits until no record came for IDLE_MS. */
async function untilIdle(state) {
  while (Date.now() < state.last + IDLE_MS) await new Promise((done) => setTimeout(done, 100))
}

function print({ key, value, headers }) {
  console.log(JSON.stringify({ key: text(key), value: text(value), headers }))
}

const clients = {
  kafkajs: () => {
    const kafka = new kafkajs.Kafka({ brokers: brokers.split(','), logLevel: kafkajs.logLevel.NOTHING })
    let producer
    return {
      async read() {
        const state = { last: Date.now() }
        const consumer = kafka.consumer({ groupId: `foreign-${Math.random()}` })
        await consumer.connect()
        await consumer.subscribe({ topics: [topic], fromBeginning: true })
        consumer.on(consumer.events.GROUP_JOIN, () => { state.last = Date.now() })
        await consumer.run({
          eachMessage: async ({ message: { key, value, headers } }) => {
            state.last = Date.now()
            const pairs = Object.entries(headers).flatMap(([n, v]) => (Array.isArray(v) ? v : [v]).map((each) => [n, text(each)]))
            print({ key, value, headers: pairs })
          },
        })
        await untilIdle(state)
        await consumer.disconnect()
      },
      async open(configured) {
        const createPartitioner = configured ? kafkajs.Partitioners.DefaultPartitioner : undefined
        producer = kafka.producer({ createPartitioner, idempotent: configured })
        await producer.connect()
      },
      async send({ key, value, headers }) {
        await producer.send({ topic, messages: [{ key, value, headers }] })
      },
      async close() { await producer?.disconnect() },
    }
  },
  '@platformatic/kafka': () => {
    const options = { clientId: 'foreign', bootstrapBrokers: brokers.split(',') }
    let producer
    return {
      async read() {
        const state = { last: Date.now() }
        const consumer = new Consumer({ ...options, groupId: `foreign-${Math.random()}`, autocommit: false })
        const stream = await consumer.consume({ topics: [topic], mode: 'earliest', isolationLevel: 1, maxWaitTime: 500 })
        stream.on('data', ({ key, value, headers }) => {
          state.last = Date.now()
          print({ key, value, headers: [...(headers ?? [])].map(([n, v]) => [n.toString(), text(v)]) })
        })
        await untilIdle(state)
        await consumer.close(true)
      },
      async open(configured) {
        const more = configured ? { partitioner: compatibilityPartitioner, acks: ProduceAcks.ALL, idempotent: true } : {}
        producer = new Producer({ ...options, ...more })
      },
      async send({ key, value, headers }) {
        const pairs = headers && new Map(Object.entries(headers).map(([n, v]) => [Buffer.from(n), bytes(v)]))
        await producer.send({ messages: [{ topic, key: bytes(key), value: bytes(value), headers: pairs }] })
      },
      async close() { await producer?.close() },
    }
  },
}

const client = clients[name]()

const commands = {
  async read() {
    await client.read()
  },
  async send(mode, count) {
    await client.open(mode === 'configured')
    for (let i = 0; i < Number(count); i++) await client.send({ key: `id-${i}`, value: 'v' })
  },
  async nulls() {
    await client.open(true)
    for (const record of [
      { key: 'null value', value: null },
      { key: 'empty value', value: '' },
      { key: 'null header', value: 'v', headers: { h: null } },
      { key: 'empty header', value: 'v', headers: { h: '' } },
    ]) {
      try {
        await client.send(record)
      } catch (error) {
        console.log(`${record.key}: error ${error.name}`)
      }
    }
  },
  async timers(mode, target, due, count) {
    await client.open(mode === 'configured')
    const headers = { 'timer-topic': target, 'timer-due': due }
    for (let i = 0; i < Number(count); i++) await client.send({ key: `${target}-${i}`, value: 'v', headers })
    for (let i = 0; i < Number(count); i++) await client.send({ key: `${target}-${i}`, value: null })
  },
}

await commands[command](...rest)
await client.close()
process.exit(0)
