// What programs do with kafkajs: topics, records in a group, offsets, settings.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [place, topic] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: [place], logLevel: logLevel.NOTHING })
const COUNT = 100

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2 }] })
  const described = await admin.fetchTopicMetadata({ topics: [topic] })
  console.log(`createTopics, fetchTopicMetadata: ${described.topics[0].partitions.length} partitions`)

  for (const idempotent of [false, true]) {
    const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 })
    await producer.connect()
    const messages = Array.from({ length: COUNT }, (_, number) => ({ key: `${number % 7}`, value: `${number}` }))
    await producer.send({ topic, compression: CompressionTypes.GZIP, messages })
    await producer.disconnect()
    console.log(`producer, idempotent ${idempotent}, gzip: sent ${COUNT}`)
  }

  const consumer = kafka.consumer({ groupId: `${topic}-readers` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  let found = 0
  await new Promise((resolve) =>
    consumer.run({ eachMessage: async () => { if (++found === 2 * COUNT) resolve() } })
  )
  await consumer.disconnect()
  console.log(`consumer in a group: read ${found}`)

  const groups = await admin.describeGroups([`${topic}-readers`])
  console.log(`describeGroups: ${groups.groups[0].state}`)
  const offsets = await admin.fetchOffsets({ groupId: `${topic}-readers`, topics: [topic] })
  const committed = offsets[0].partitions.reduce((sum, each) => sum + Number(each.offset), 0)
  console.log(`fetchOffsets: ${committed} in all`)
  await admin.resetOffsets({ groupId: `${topic}-readers`, topic, earliest: true })
  console.log('resetOffsets: done')
  await admin.alterConfigs({
    validateOnly: false,
    resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '60000' }] }],
  })
  const configs = await admin.describeConfigs({ includeSynonyms: true, resources: [{ type: 2, name: topic }] })
  const retention = configs.resources[0].configEntries.find((each) => each.configName === 'retention.ms')
  console.log(`alterConfigs, describeConfigs: retention.ms=${retention.configValue}`)
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '-1' }, { partition: 1, offset: '-1' }] })
  const left = await admin.fetchTopicOffsets(topic)
  console.log(`deleteTopicRecords: ${left.every((each) => each.low === each.high) ? 'nothing left' : JSON.stringify(left)}`)
  try {
    const lists = await admin.describeAcls({ resourceType: 1, resourcePatternType: 1, operation: 1, permissionType: 1 })
    console.log(`describeAcls: ${lists.resources.length} lists`)
  } catch (refused) {
    console.log(`describeAcls: ${refused.message}`)
  }
  await admin.deleteGroups([`${topic}-readers`])
  await admin.deleteTopics({ topics: [topic] })
  console.log('deleteGroups, deleteTopics: done')
  await admin.disconnect()

  const began = Date.now()
  const transactional = kafka.producer({ transactionalId: 't', idempotent: true, maxInFlightRequests: 1 })
  await transactional.connect()
  try {
    for (const value of ['committed', 'aborted']) {
      const transaction = await transactional.transaction()
      await transaction.send({ topic: 'transactions', messages: [{ value }] })
      await (value === 'committed' ? transaction.commit() : transaction.abort())
    }
    const reader = kafka.consumer({ groupId: 'transactions' })
    await reader.connect()
    await reader.subscribe({ topic: 'transactions', fromBeginning: true })
    const read = await new Promise((resolve) =>
      reader.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) })
    )
    await reader.disconnect()
    console.log(`transaction: ${read}, and the other aborted`)
  } catch (refused) {
    console.log(`transaction: ${Date.now() - began < 30000 ? 'at once' : 'late'}: ${refused.message}`)
  }
  await transactional.disconnect()
  await limited()
}

async function limited() {
  const producer = new Kafka({ clientId: 'limited', brokers: [place], logLevel: logLevel.NOTHING }).producer()
  await producer.connect()
  const began = Date.now()
  for (const size of [60_000, 1]) {
    await producer.send({ topic: 'limited', messages: [{ partition: 0, value: Buffer.alloc(size) }] })
  }
  await producer.disconnect()
  const heard = Date.now() - began > 1000 ? 'held back' : 'not held back'
  console.log(`three times as much as a limit allows in a second: ${heard}`)
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1) })
