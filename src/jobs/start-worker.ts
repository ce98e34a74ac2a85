import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import type { Engine } from './engine.js'
import type { Handled, HandledJob } from './handlers.js'
import { checkHeartbeatThread } from './heartbeat-thread.js'
import { RunningWorker } from './running-worker.js'
import { type WorkOptions, workOptions } from './work-options.js'

/** Starts a worker for these handlers. */
export function startWorker(engine: Engine, parts: readonly Handled[], options: WorkOptions): RunningWorker {
  const read = workOptions.read(options)
  if (!Array.isArray(parts))
    throw new InvalidInputError(
      'parts',
      `must be an array of what \`jobs.handle\` gives, not ${nameGiven(parts)}`,
    )
  const wrong = parts.findIndex((part) => !Array.isArray(part?.handled))
  if (wrong >= 0)
    throw new InvalidInputError(
      `parts[${wrong}]`,
      `must be what \`jobs.handle\` gives, not ${nameGiven(parts[wrong])}`,
    )
  const foreign = parts.findIndex(({ schema }) => schema !== engine.database.schema)
  if (foreign >= 0)
    throw new InvalidInputError(
      `parts[${foreign}]`,
      `has handlers for jobs of the schema "${parts[foreign]?.schema}", and this instance works on "${engine.database.schema}"`,
    )
  const all = parts.flatMap(({ handled }) => handled)
  if (all.length === 0)
    throw new InvalidInputError('parts', 'must have handlers for one job at least: what `jobs.handle` gives')
  const wanted = all.filter(
    ({ definition }) => read.queues === undefined || read.queues.includes(definition.queue),
  )
  if (wanted.length === 0)
    throw new InvalidInputError('queues', 'must name a queue of one of the jobs that there are handlers for')
  const double = wanted.find((one, n) => wanted.some((other, m) => m < n && isSame(one, other)))
  if (double) throw new InvalidInputError('parts', `has two handlers for "${double.definition.name}"`)
  if (read.heartbeatThread) checkHeartbeatThread(engine.database)
  return new RunningWorker(engine, wanted, read)
}

const isSame = ({ definition: one }: HandledJob, { definition: other }: HandledJob): boolean =>
  one.queue === other.queue && one.name === other.name && one.version === other.version
