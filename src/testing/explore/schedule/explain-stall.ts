import type { ClientBase } from 'pg'
import { ExplorationError } from '../../../errors.js'
import type { Actor } from '../../gate/actor.js'
import { callSite } from '../../gate/call-site.js'
import type { GatedSession } from '../../gate/gated-session.js'

interface Stalled {
  readonly actors: readonly Actor[]
  nameOf(pid: number): string
}

/** Says of whom it is that nothing comes any more, and where it stands. */
export async function explainStall(
  stage: Stalled,
  control: ClientBase,
  patienceMs: number,
): Promise<ExplorationError> {
  const { actors } = stage
  for (const actor of actors) {
    for (const session of actor.sessions) {
      if (session.state !== 'running' && session.state !== 'passing') continue
      const about = await describe(control, session, stage)
      if (about) return stalled(actor, `${actor.name} has waited ${patienceMs} ms for ${about}`)
    }
  }
  const silent = actors.find(
    ({ outcome, sessions }) => !outcome && ![...sessions].some(({ state }) => state === 'gated'),
  )
  const actor = silent ?? (actors[0] as Actor)
  // `pool.query` sends its statement from a callback, whose stack knows nothing of the caller.
  const at = callSite(actor.asked.statement) ?? callSite(actor.asked.connection)
  const site = at
    ? ` It last asked the database for something at ${at}.`
    : ' It has not asked the database for anything yet.'
  return stalled(
    actor,
    `${actor.name} has waited ${patienceMs} ms for something that cannot be seen from here: a timer, the network, a promise of another actor, or a connection outside its handle.${site} ` +
      'Give it what it waits for, or raise patienceMs if it only takes its time.',
  )
}

const stalled = (actor: Actor, message: string): ExplorationError =>
  new ExplorationError(message, 'stalled', actor.name)

async function describe(
  control: ClientBase,
  session: GatedSession,
  stage: Stalled,
): Promise<string | undefined> {
  const { rows } = await control.query<{ pid: number; query: string | null; application: string | null }>(
    `select pid, query, application_name as application
     from unnest(pg_blocking_pids($1)) pid left join pg_stat_activity using (pid)`,
    [session.pid],
  )
  const text = JSON.stringify(session.step?.text ?? session.fused.at(-1) ?? '')
  const foreign = rows.find(({ pid }) => stage.nameOf(pid).startsWith('process'))
  if (foreign)
    return (
      `a lock, in ${text}. It is held by ${stage.nameOf(foreign.pid)} (${foreign.application || 'no name'}: ` +
      `${JSON.stringify(foreign.query ?? '')}), which is none of the actors. Explore in a database where nobody else holds locks.`
    )
  if (rows.length > 0) return `a lock, in ${text}, in a deadlock that the server has not ended.`
  return `the answer to ${text}, which waits for no lock. Raise patienceMs if it only takes its time.`
}
