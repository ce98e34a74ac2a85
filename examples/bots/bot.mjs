// One bot: a process that takes jobs until it is told to stop, or is killed. It tells main.mjs what it notices.
import { Dibs, onEvent } from 'dibs'
import { defineSums, sumHandler } from './sums.mjs'

// What goes wrong here is the point, and main.mjs shows it.
const dibs = await Dibs.open({ migrate: 'check', logger: false })
const tell = (message) => process.connected && process.send?.(message)

onEvent('dibs:job.recovered', ({ id, worker, state }) => tell({ what: 'recovered', id, worker, state }))
onEvent('dibs:job.lost', ({ id }) => tell({ what: 'lost', id }))

const worker = await defineSums(dibs).work(
  { sum: sumHandler(Number(process.env.WORK_MS)) },
  // Nothing is claimed ahead, so that a bot holds what it runs, and no more.
  { concurrency: 2, prefetch: 0, drainMs: 5_000 },
)
await worker.ready
tell({ what: 'ready' })

const stop = () =>
  dibs.close().then(
    () => process.exit(0),
    () => process.exit(1),
  )
process.once('SIGTERM', stop)
// Ctrl-C is for main.mjs, whose end is noticed here.
process.on('SIGINT', () => {})
process.once('disconnect', stop)
