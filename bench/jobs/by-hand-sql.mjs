// The statements of the hand-written loop. Bare, they are what the server can do at most: no lease, no fence, nothing kept. With a fence they
// promise what a safe engine has to: whoever lost a job cannot write its outcome. With history each finished attempt stays, as a row of a
// table partitioned by day.

const DAY_MS = 86_400_000

export function tablesOf({ schema, fence, history }) {
  const fenced = `,
      lane text not null default 'noop',
      priority smallint not null default 0,
      due_at timestamptz not null default now(),
      attempt int not null default 0,
      fence bigint not null default 0,
      worker text,
      lease_until timestamptz,
      started_at timestamptz`
  return `
    drop schema if exists ${schema} cascade;
    create schema ${schema};
    create table ${schema}.job (
      id bigint generated always as identity primary key,
      state text not null default 'ready',
      payload jsonb not null${fence ? fenced : ''}
    );
    create index on ${schema}.job (${fence ? 'lane, priority, id' : 'id'}) where state = 'ready';
    ${history ? historyOf(schema) : ''}`
}

/** Yesterday's too, so that no clock at midnight is without. */
function historyOf(schema) {
  const day = (n) => new Date(Date.now() + n * DAY_MS).toISOString().slice(0, 10)
  const partitions = [-1, 0, 1, 2].map(
    (n) =>
      `create table ${schema}.history_${day(n).replaceAll('-', '')} partition of ${schema}.history
         for values from ('${day(n)}') to ('${day(n + 1)}');`,
  )
  return `
    create table ${schema}.history (
      job_id bigint not null,
      fence bigint not null,
      attempt int not null,
      worker text not null,
      started_at timestamptz not null,
      ended_at timestamptz not null,
      outcome text not null,
      payload jsonb not null
    ) partition by range (ended_at);
    create index on ${schema}.history (job_id);
    ${partitions.join('\n')}`
}

export function statementsOf({ schema, fence, history, hints }) {
  const job = `${schema}.job`
  const hint = `, pg_notify('${schema}', '')`
  const named = (name, text) => (values) => ({ name: `${schema}-${name}`, text, values })
  const insertMany = `insert into ${job} (payload) select value::jsonb from unnest($1::text[]) as value`
  const insertOne = `insert into ${job} (payload) values ($1::jsonb)`
  // The hint is sent with the commit of the insert, as all who listen do it.
  const hinted = (insert) =>
    hints ? `with added as (${insert} returning id) select count(*)${hint} from added` : insert
  // By id alone the primary key would do too, and the server has read a million jobs of other lanes to find the first of this one.
  const ready = `select id from ${job} where state = 'ready'${fence ? " and lane = 'noop'" : ''}
    order by ${fence ? 'priority, id' : 'id'} limit $1 for update skip locked`
  const claimed = fence
    ? `state = 'running', attempt = attempt + 1, worker = $2,
       fence = greatest(fence + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint),
       started_at = clock_timestamp(), lease_until = clock_timestamp() + interval '30 seconds'`
    : "state = 'running'"
  const ended = `delete from ${job} using unnest($1::bigint[], $2::bigint[]) as own (id, fence)
    where job.id = own.id and job.fence = own.fence and job.state = 'running'`
  const endedWithHistory = `with gone as (
      ${ended} returning job.id, job.fence, job.attempt, job.worker, job.started_at, job.payload
    )
    insert into ${schema}.history (job_id, fence, attempt, worker, started_at, ended_at, outcome, payload)
    select id, fence, attempt, worker, started_at, now(), 'succeeded', payload from gone`
  return {
    addMany: named('add-many', hinted(insertMany)),
    addOne: named('add-one', hinted(insertOne)),
    claim: named(
      'claim',
      `update ${job} set ${claimed} where id = any(array(${ready})) returning id${fence ? ', fence' : ''}, payload`,
    ),
    end: named(
      'end',
      !fence ? `delete from ${job} where id = any($1::bigint[])` : history ? endedWithHistory : ended,
    ),
  }
}

/** By SQL, since there is no other door; `later` waits in a state of its own, as it must in any design that does not read over it. */
export const fillOf = ({ schema }) => ({
  waiting: `insert into ${schema}.job (payload) select $2::jsonb from generate_series(1, $1)`,
  other: `insert into ${schema}.job (payload, lane)
    select $2::jsonb, 'other-' || n % 10 from generate_series(1, $1) as n`,
  later: `insert into ${schema}.job (payload, state, due_at)
    select $2::jsonb, 'later', now() + interval '1 day' from generate_series(1, $1)`,
})
