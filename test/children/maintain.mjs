// A process without a worker that uses Dibs until it is told to close. Reports each round of maintenance that it does.
import { Dibs, onEvent } from '../../dist/index.js'

const { url, schema, options } = JSON.parse(process.argv[2])
// Rounds come every 30 seconds, give or take a fifth, the first after 15 to 30. Here, in a hundredth of that.
const { setTimeout: wait } = globalThis
globalThis.setTimeout = (run, ms, ...rest) => wait(run, ms >= 15_000 && ms <= 36_000 ? ms / 100 : ms, ...rest)

onEvent('dibs:maintenance.done', ({ counts }) => process.send({ counts }))
onEvent('dibs:maintenance.failed', ({ error }) => process.send({ error: `${error}` }))
const dibs = await Dibs.open({ url, schema, migrate: 'off', listen: false, ...options })
await dibs.once({ scope: 'orders', key: 'k' }, async () => 1)
await dibs.kv.set('mine', 1)
await dibs.quota('points', { limit: 5 }).take('ann', 1)
process.send({ opened: true })
process.on('message', async () => {
  await dibs.close()
  process.disconnect()
})
