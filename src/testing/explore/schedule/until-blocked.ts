import pg, { type ClientBase } from 'pg'
import { ExplorationError, InvalidInputError } from '../../../errors.js'
import { checkDuration } from '../../../postgres/check-duration.js'
import { checkOptions } from '../../../postgres/check-options.js'
import { endClient } from '../../../postgres/client.js'
import { hasMethods, nameGiven } from '../../../postgres/name-given.js'
import { sleep } from '../../../postgres/sleep.js'
import { BlockingProbe } from './blocking-probe.js'

export interface UntilBlockedOptions {
  /** How long to look. Default 5,000. */
  readonly withinMs?: number | undefined
}

const PAUSE_MS = 5

/**
 * Waits until the statement that `client` has sent waits for a lock, as the server says: for tests written by hand, in
 * place of a sleep. Resolves to the processes that hold the lock or were there first.
 *
 * @example
 * const waiting = bob.query('update stock set amount = 0')
 * await untilBlocked(bob)
 * await alice.query('commit')
 * await waiting
 */
export async function untilBlocked(
  client: ClientBase,
  options: UntilBlockedOptions = {},
): Promise<readonly number[]> {
  if (!hasMethods(client, 'query', 'escapeIdentifier'))
    throw new InvalidInputError('client', `must be a client of pg, not ${nameGiven(client)}`)
  checkOptions(options, ['withinMs'])
  const withinMs = checkDuration('withinMs', options.withinMs ?? 5_000)
  const {
    host,
    port,
    user,
    password,
    database,
    ssl,
    processID: pid,
  } = client as pg.Client & { processID: number }
  // A connection of its own: the client's is busy, and a pool's last one may be the one that waits.
  const control = new pg.Client({ host, port, user, password, database, ssl })
  control.on('error', () => {})
  await control.connect()
  try {
    const probe = await BlockingProbe.open(control)
    const deadline = performance.now() + withinMs
    for (;;) {
      const blocked = (await probe.look([pid], [])).get(pid)
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
  const stands = found
    ? `it is ${found.state}, and its last statement is ${JSON.stringify(found.query)}`
    : 'the server knows no such process: is there a pooler in between?'
  return new ExplorationError(`Process ${pid} waits for no lock after ${withinMs} ms: ${stands}.`, 'stalled')
}
