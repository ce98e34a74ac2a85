import type { ClientBase } from 'pg'
import { ExplorationError } from '../../../errors.js'
import type { Actor } from '../../gate/actor.js'
import { callSite } from '../../gate/call-site.js'
import type { GatedSession } from '../../gate/gated-session.js'

interface StalledActors {
  readonly actors: readonly Actor[]
  nameOf(pid: number): string
}

/** Makes the error for a stall: which actor makes no progress, what it waits for, and where in its code. */
export async function explainStall(
  stalled: StalledActors,
  control: ClientBase,
  patienceMs: number,
): Promise<ExplorationError> {
  const { actors } = stalled
  for (const actor of actors) {
    for (const session of actor.sessions) {
      if (session.state !== 'running' && session.state !== 'passing') continue
      const about = await describe(control, session, stalled)
      if (about) return stallError(actor, `${actor.name} has waited ${patienceMs} ms for ${about}`)
    }
  }
  const withoutStep = actors.find(
    ({ outcome, sessions }) => !outcome && ![...sessions].some(({ state }) => state === 'gated'),
  )
  const actor = withoutStep ?? (actors[0] as Actor)
  // If the stack of the last statement shows no caller (`pool.query` sends from a callback), take that of the connection.
  const at = callSite(actor.lastCalls.statement) ?? callSite(actor.lastCalls.connection)
  const site = at ? ` It last used the database at ${at}.` : ' It has not used the database yet.'
  return stallError(
    actor,
    `${actor.name} has waited ${patienceMs} ms for something that cannot be seen from here: a timer, the network, a promise of another actor, or a connection outside its handle.${site} ` +
      'Give it what it waits for, or raise patienceMs if it only takes its time.',
  )
}

const stallError = (actor: Actor, message: string): ExplorationError =>
  new ExplorationError(message, 'stalled', actor.name)

async function describe(
  control: ClientBase,
  session: GatedSession,
  stalled: StalledActors,
): Promise<string | undefined> {
  const { rows } = await control.query<{ pid: number; query: string | null; application: string | null }>(
    `select pid, query, application_name as application
     from unnest(pg_blocking_pids($1)) pid left join pg_stat_activity using (pid)`,
    [session.pid],
  )
  const text = JSON.stringify(session.step?.text ?? session.precedingTexts.at(-1) ?? '')
  const foreign = rows.find(({ pid }) => stalled.nameOf(pid).startsWith('process'))
  if (foreign)
    return (
      `a lock, in ${text}. It is held by ${stalled.nameOf(foreign.pid)} (${foreign.application || 'no name'}: ` +
      `${JSON.stringify(foreign.query ?? '')}), which is none of the actors. Explore in a database where no other session holds locks.`
    )
  if (rows.length > 0) return `a lock, in ${text}, in a deadlock that the server has not ended.`
  return `the answer to ${text}, which waits for no lock. Raise patienceMs if it only takes its time.`
}
