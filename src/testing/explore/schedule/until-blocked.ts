import pg, { type ClientBase } from 'pg'
import { ExplorationError, InvalidInputError } from '../../../errors.js'
import { hasMethods, nameGiven } from '../../../options/name-given.js'
import { duration } from '../../../options/number-options.js'
import { optionTable } from '../../../options/option-table.js'
import { endClient } from '../../../postgres/client.js'
import { sleep } from '../../../postgres/sleep.js'
import { BlockingProbe } from './blocking-probe.js'

export interface UntilBlockedOptions {
  /** How long to poll the server before the call fails. Default 5,000. */
  readonly withinMs?: number | undefined
}

export const untilBlockedOptions = optionTable<UntilBlockedOptions>()('untilBlocked', {
  withinMs: duration({ default: 5_000 }),
})

const PAUSE_MS = 5

/**
 * Resolves when the statement that `client` has sent waits for a lock, as the server reports it. For tests written by hand,
 * in place of a sleep. The result is the ids of the processes that hold the lock or stand before the client in the queue.
 *
 * @example
 * const waiting = bob.query('update stock set amount = 0')
 * await untilBlocked(bob)
 * await alice.query('commit')
 * await waiting
 */
export async function untilBlocked(
  client: ClientBase,
  options?: UntilBlockedOptions,
): Promise<readonly number[]> {
  if (!hasMethods(client, 'query', 'escapeIdentifier'))
    throw new InvalidInputError('client', `must be a client of pg, not ${nameGiven(client)}`)
  const { withinMs } = untilBlockedOptions.read(options)
  const {
    host,
    port,
    user,
    password,
    database,
    ssl,
    processID: pid,
  } = client as pg.Client & { processID: number }
  // The probe needs a connection of its own: the client's is busy, and a pool may have no other.
  const control = new pg.Client({ host, port, user, password, database, ssl })
  control.on('error', () => {})
  await control.connect()
  try {
    const probe = await BlockingProbe.open(control)
    const deadline = performance.now() + withinMs
    for (;;) {
      const blocked = (await probe.findBlocked([pid], [])).get(pid)
      if (blocked) return blocked.by
      if (performance.now() > deadline) throw await explain(control, pid, withinMs)
      await sleep(PAUSE_MS)
    }
  } finally {
    await endClient(control)
  }
}

async function explain(control: pg.Client, pid: number, withinMs: number): Promise<ExplorationError> {
  const { rows } = await control.query<{ state: string; query: string }>(
    'select state, query from pg_stat_activity where pid = $1',
    [pid],
  )
  const [found] = rows
  const state = found
    ? `it is ${found.state}, and its last statement is ${JSON.stringify(found.query)}`
    : 'the server knows no such process: is there a pooler in between?'
  return new ExplorationError(`Process ${pid} waits for no lock after ${withinMs} ms: ${state}.`, 'stalled')
}
