// A process whose handlers end it, or never end themselves.
import { Dibs } from '../../dist/index.js'

const { url, schema, definitions } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())
const dibs = await Dibs.open({ url, schema, logger: false, migrate: 'off' })
const handlers = {
  poison: (_input, { id, attempt }) => {
    process.send({ at: 'poison', id, attempt }, () => process.kill(process.pid, 'SIGKILL'))
    return new Promise(() => {})
  },
  endless: (_input, { id, attempt }) => {
    process.send({ at: 'endless', id, attempt })
    return new Promise(() => {})
  },
  good: (_input, { id, attempt }) => process.send({ at: 'good', id, attempt }),
}
const chosen = Object.fromEntries(Object.keys(definitions).map((name) => [name, handlers[name]]))
const worker = await dibs.work([dibs.jobs(definitions).handle(chosen)], { concurrency: 3 })
await worker.ready
process.send({ at: 'ready' })
