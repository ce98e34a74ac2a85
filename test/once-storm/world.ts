import type pg from 'pg'
import { effectsOf, type Plan } from './plans.js'

/**
 * The world outside, the caller's own table, and a journal of each change of a claim. The journal is written by the server
 * under the lock of the row, so that its order for a key is what happened, whatever the processes saw of it.
 */
export async function createWorld(pool: pg.Pool, schema: string, world: string): Promise<void> {
  await pool.query(`
    create schema ${world};
    create table ${world}.arrival (id text not null, what text not null, fence bigint not null);
    create table ${world}.effect (id text primary key, what text not null, number int generated always as identity);
    create table ${world}.entry (key text not null, run text not null);
    create table ${world}.journal (
      number bigint generated always as identity, key text not null, problem text, was jsonb, is_now jsonb
    );
    create function ${world}.note() returns trigger language plpgsql as $$
    declare
      v_problem text;
    begin
      if tg_op = 'UPDATE' then
        v_problem := case
          when old.status <> 'pending' then 'changed after it had its outcome'
          when new.fence < old.fence then 'its fence went back'
          when new.holder <> old.holder and new.fence = old.fence then 'two holders under one fence'
          when new.holder not in (old.holder, 'nobody') and old.holder <> 'nobody' and old.lease_until > '-infinity'
            and new.fence < extract(epoch from old.lease_until) * 1000000
            then 'taken from a holder whose lease had not run out'
          when new.outcome::jsonb ? 'fence' and (new.outcome->>'fence')::bigint <> new.fence
            then 'an outcome of another attempt than that which held it'
          when exists (
            select from jsonb_each_text(new.steps) s
            where old.steps->>s.key is distinct from s.value and (s.value::json->>'fence')::bigint <> new.fence
          ) then 'a step of another attempt than that which held it'
        end;
      elsif tg_op = 'DELETE' then
        v_problem := 'removed';
      end if;
      insert into ${world}.journal (key, problem, was, is_now)
      values (coalesce(new.key, old.key), v_problem, to_jsonb(old), to_jsonb(new));
      return null;
    end $$;
    create trigger note after insert or update or delete on ${schema}.claim
      for each row execute function ${world}.note()`)
}

/** The final state of the database. */
export interface Findings {
  /** The violations, in words. Must be empty. */
  readonly problems: readonly string[]
  /** Arrivals at the world outside, and those of them that it knew already. */
  readonly arrivals: number
  readonly repeated: number
}

/** Holds what is in the database against what each caller was told. `answers`: the texts for each key, without repetition. */
export async function inspectWorld(
  pool: pg.Pool,
  schema: string,
  world: string,
  plans: Iterable<Plan>,
  answers: ReadonlyMap<string, ReadonlySet<string>>,
): Promise<Findings> {
  const read = async <R extends pg.QueryResultRow>(text: string): Promise<R[]> =>
    (await pool.query<R>(text)).rows
  const problems: string[] = []

  for (const { key, problem, was, is_now } of await read(
    `select key, problem, was, is_now from ${world}.journal where problem is not null order by number limit 10`,
  ))
    problems.push(`${key}: ${problem}; was ${JSON.stringify(was)}, became ${JSON.stringify(is_now)}`)

  const effects = groupBy(
    await read<{ what: string }>(`select what from ${world}.effect`),
    ({ what }) => what,
  )
  const entries = groupBy(
    await read<{ key: string; run: string }>(`select key, run from ${world}.entry`),
    ({ key }) => key,
  )
  const claims = groupBy(
    await read<{ key: string; status: string; outcome: string }>(
      `select key, status, outcome::text as outcome from ${schema}.claim`,
    ),
    ({ key }) => key,
  )
  const known = new Set<string>()
  for (const plan of plans) {
    const { key } = plan
    for (const what of effectsOf(plan)) {
      known.add(what)
      const count = effects.get(what)?.length ?? 0
      if (count !== 1) problems.push(`${what} took place ${count} times`)
    }
    const written = entries.get(key)?.length ?? 0
    if (written !== (plan.kind === 'joined' ? 1 : 0)) problems.push(`${key} was written ${written} times`)
    const found = claims.get(key) ?? []
    if (found.length !== 1) problems.push(`${key} has ${found.length} claims`)
    for (const { status, outcome } of found) {
      if (status !== 'active') problems.push(`${key} was left ${status}`)
      const told = [...(answers.get(key) ?? [])]
      if (told.length !== 1 || told[0] !== outcome)
        problems.push(`${key} was answered ${told.join(' and ')}, and ${outcome} is stored`)
    }
    const [entry] = entries.get(key) ?? []
    if (entry && JSON.parse(found[0]?.outcome ?? '{}').run !== entry.run)
      problems.push(`${key} was answered by another run than that which has written`)
  }
  for (const what of effects.keys()) if (!known.has(what)) problems.push(`${what} was not asked for`)

  const [count] = await read<{ arrivals: number; repeated: number }>(
    `select count(*)::int as arrivals, (count(*) - count(distinct id))::int as repeated from ${world}.arrival`,
  )
  return { problems, arrivals: count?.arrivals ?? 0, repeated: count?.repeated ?? 0 }
}

/** Fences that processes say they were given, and that no claim ever had. */
export async function findUnknownFences(
  pool: pg.Pool,
  world: string,
  fences: ReadonlySet<number>,
): Promise<number[]> {
  const { rows } = await pool.query<{ fence: string }>(
    `select fence::text as fence from unnest($1::bigint[]) fence
     where not exists (select from ${world}.journal where (is_now->>'fence')::bigint = fence)`,
    [[...fences]],
  )
  return rows.map(({ fence }) => Number(fence))
}

function groupBy<R>(rows: readonly R[], keyOf: (row: R) => string): Map<string, R[]> {
  const groups = new Map<string, R[]>()
  for (const row of rows) groups.set(keyOf(row), [...(groups.get(keyOf(row)) ?? []), row])
  return groups
}
