import type pg from 'pg'

/** One job as the storm has planned it. */
export interface PlannedJob {
  readonly id: string
  readonly name: string
  readonly input: { readonly n: number; readonly ms: number }
}

/** The table that jobs write to, and a journal in which triggers record forbidden changes of jobs and history. */
export async function createWorld(pool: pg.Pool, schema: string, world: string): Promise<void> {
  await pool.query(`
    create schema ${world};
    create table ${world}.effect (n integer not null, fence bigint not null);
    create table ${world}.problem (what text not null);
    create function ${world}.note() returns trigger language plpgsql as $$
    begin
      insert into ${world}.problem values (format('%s: %s; was %s, became %s', tg_argv[0], tg_op, to_jsonb(old), to_jsonb(new)));
      return null;
    end $$;
    create trigger overwritten after update or delete on ${schema}.job_history
      for each row execute function ${world}.note('an outcome was changed');
    create trigger taken_early after update on ${schema}.job for each row
      when (old.state = 'running' and new.state <> 'running' and new.attempt = old.attempt
        and new.error ->> 'name' = 'LeaseLostError' and old.error::text is distinct from new.error::text and old.lease_until > clock_timestamp())
      execute function ${world}.note('taken from a worker whose lease had not run out')`)
}

interface Attempt {
  readonly id: string
  readonly fence: string
  readonly attempt: number
  readonly outcome: string
  readonly result: { n: number; fence: number } | null
}

/** Holds what the database has in the end against the plan. What must be empty, in words. */
export async function inspectLedger(
  pool: pg.Pool,
  schema: string,
  world: string,
  jobs: readonly PlannedJob[],
): Promise<string[]> {
  const read = async <R extends pg.QueryResultRow>(text: string): Promise<R[]> =>
    (await pool.query<R>(text)).rows
  const problems = (await read<{ what: string }>(`select what from ${world}.problem limit 10`)).map(
    ({ what }) => what,
  )
  const attempts = groupBy(
    await read<Attempt>(
      `select id::text as id, fence::text as fence, attempt, outcome, result from ${schema}.job_history order by id, fence`,
    ),
    ({ id }) => id,
  )
  const left = new Map(
    (await read<{ id: string; state: string }>(`select id::text as id, state from ${schema}.job`)).map(
      ({ id, state }) => [id, state],
    ),
  )
  const effects = groupBy(
    await read<{ n: number; fence: string }>(`select n, fence::text as fence from ${world}.effect`),
    ({ n }) => `${n}`,
  )
  for (const job of jobs) {
    const { id, name, input } = job
    const recorded = attempts.get(id) ?? []
    const about = (what: string): number =>
      problems.push(`job ${id} (${name}, number ${input.n}) ${what}; its history: ${describe(recorded)}`)
    const last = recorded.at(-1)
    const ends = name === 'doomed' ? 'failed' : 'succeeded'
    if (last?.outcome !== ends) about(`should have ${ends}`)
    if (recorded.filter(({ outcome }) => outcome === 'succeeded').length !== (name === 'doomed' ? 0 : 1))
      about('should have succeeded once, or never if it is doomed')
    if (new Set(recorded.map(({ fence }) => fence)).size !== recorded.length)
      about('has two outcomes of one claim')
    if (recorded.some(({ attempt }, n) => attempt !== n + 1))
      about('has attempts that are not counted one by one')
    if (recorded.some(({ outcome }) => !['succeeded', 'failed', 'lost'].includes(outcome)))
      about('has an outcome that nobody asked for')
    if (last?.result && (last.result.n !== input.n || `${last.result.fence}` !== last.fence))
      about(`has the result of another attempt: ${JSON.stringify(last.result)}`)
    if (name !== 'doomed' && !last?.result) about('has no result')
    const state = left.get(id)
    if (state !== (name === 'doomed' ? 'dead' : undefined)) about(`is ${state ?? 'gone'}`)
    const written = effects.get(`${input.n}`) ?? []
    const isWriter = name === 'transactional' || name === 'flakyTransactional'
    if (written.length !== (isWriter ? 1 : 0)) about(`was written ${written.length} times`)
    if (isWriter && written[0]?.fence !== last?.fence)
      about(`was written under ${written[0]?.fence}, which has not succeeded`)
  }
  const known = new Set(jobs.map(({ id }) => id))
  for (const id of [...attempts.keys(), ...left.keys()])
    if (!known.has(id)) problems.push(`job ${id} was never added`)
  return problems
}

const describe = (attempts: readonly Attempt[]): string =>
  attempts.map(({ attempt, outcome, fence }) => `${attempt} ${outcome} (${fence})`).join(', ') || 'none'

function groupBy<R>(rows: readonly R[], keyOf: (row: R) => string): Map<string, R[]> {
  const groups = new Map<string, R[]>()
  for (const row of rows) {
    const key = keyOf(row)
    const group = groups.get(key)
    if (group) group.push(row)
    else groups.set(key, [row])
  }
  return groups
}
