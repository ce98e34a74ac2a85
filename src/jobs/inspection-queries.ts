import { statement } from '../postgres/statement.js'

const eq = 'operator(pg_catalog.=)'
const lane = `l.queue::text as "queue", l.name::text as "name", l.version::text as "version"`
const live = `j.id::text as "id", ${lane}, j.state::text as "state", j.priority::text as "priority", j.attempt::text as "attempt",
  j.max_attempts::text as "maxAttempts", j.fence::text as "fence", {schema}.micros(j.created_at)::text as "createdAt",
  {schema}.micros(j.run_at)::text as "runAt", {schema}.micros(j.started_at)::text as "startedAt", null::text as "endedAt",
  {schema}.micros(j.lease_until)::text as "leaseUntil", {schema}.micros(j.expires_at)::text as "expiresAt",
  (j.cancel_at is not null)::text as "isCanceling", j.worker::text as "worker", j.correlation_id::text as "correlationId",
  j.input::text as "input", j.progress::text as "progress", null::text as "result", j.error::text as "error"`
const past = `h.id::text as "id", ${lane}, h.outcome::text as "state", h.priority::text as "priority", h.attempt::text as "attempt",
  null::text as "maxAttempts", h.fence::text as "fence", {schema}.micros(h.created_at)::text as "createdAt",
  null::text as "runAt", {schema}.micros(h.started_at)::text as "startedAt", {schema}.micros(h.ended_at)::text as "endedAt",
  null::text as "leaseUntil", null::text as "expiresAt",
  'false'::text as "isCanceling", h.worker::text as "worker", h.correlation_id::text as "correlationId",
  h.input::text as "input", null::text as "progress", h.result::text as "result", h.error::text as "error"`

/** One snapshot: the live job, or its last attempt if the job has ended. */
export const readJob = statement(
  `select * from (
    select ${live} from {schema}.job j join {schema}.lane l on l.id ${eq} j.lane where j.id ${eq} $1::text::bigint
    union all
    (select ${past} from {schema}.job_history h join {schema}.lane l on l.id ${eq} h.lane
      where h.id ${eq} $1::text::bigint and not exists (select from {schema}.job j where j.id ${eq} $1::text::bigint)
      order by h.ended_at desc, h.fence desc limit 1)
  ) r`,
  { readOnly: true },
)

export const readHistory = statement(
  `select h.attempt::text as "attempt", h.fence::text as "fence", h.outcome::text as "outcome", {schema}.micros(h.started_at)::text as "startedAt",
    {schema}.micros(h.ended_at)::text as "endedAt", h.worker::text as "worker", h.correlation_id::text as "correlationId", h.result::text as "result", h.error::text as "error"
  from {schema}.job_history h where h.id ${eq} $1::text::bigint
    and ({schema}.micros(h.ended_at), h.fence) operator(pg_catalog.>) ($2::text::bigint, $3::text::bigint)
  order by h.ended_at, h.fence limit $4::text::integer`,
  { readOnly: true },
)

/** The names of jobs, live or ended. */
export const readJobNames = statement(
  `select j.id::text as "id", l.name::text as "name" from {schema}.job j join {schema}.lane l on l.id ${eq} j.lane
    where j.id ${eq} any ($1::text::bigint[])
  union
  select h.id::text, l.name::text from {schema}.job_history h join {schema}.lane l on l.id ${eq} h.lane
    where h.id ${eq} any ($1::text::bigint[])`,
  { readOnly: true },
)

/**
 * The dead or scheduled jobs of a lane, in the order of their index. With `j.lane = …`, and where most jobs are dead, PostgreSQL
 * would read all of them by their ids, once for each lane.
 */
const indexedIn = (index: 'dead' | 'scheduled', l: string): string =>
  `j.indexed_in ${eq} '${index}' and (j.lane, j.id) operator(pg_catalog.>) (${l}.id, 0::bigint) and j.lane operator(pg_catalog.<=) ${l}.id`

/** The dead jobs of these lanes (pairs of queue and name) after a place, with a string in the name, code or message of their error. */
export const listDead = statement(
  `select ${live}, j.lane::text as "lane" from {schema}.lane l cross join lateral (
    select * from {schema}.job j where ${indexedIn('dead', 'l')}
      and (j.lane, j.id) operator(pg_catalog.>) ($3::text::bigint, $4::text::bigint)
      and ($5::text is null or pg_catalog.strpos(pg_catalog.concat_ws(E'\\n', ${['name', 'code', 'message'].map((field) => `j.error operator(pg_catalog.->>) '${field}'`).join(', ')}), $5::text) operator(pg_catalog.>) 0)
    order by j.lane, j.id limit $6::text::integer) j
  where l.id operator(pg_catalog.>=) $3::text::bigint
    and exists (select from unnest($1::text::text[], $2::text::text[]) d (queue, name) where d.queue ${eq} l.queue and d.name ${eq} l.name)
  order by j.lane, j.id limit $6::text::integer`,
  { readOnly: true },
)

/** The bound of each count in a list of queues: the cost of a list must not grow with the number of jobs. */
export const MAX_COUNT = 1_000

/** Counts in the order of the index. Without an order, PostgreSQL finds a thousand of many by reading the whole table. */
const counted = (state: string, condition: string, order: string): string =>
  `(select count(*) from (select from {schema}.job j where ${condition} and j.state ${eq} '${state}' order by ${order} limit ${MAX_COUNT + 1}) c)::text as "${state}"`
const inReadyIndex = `j.indexed_in ${eq} 'ready' and j.lane ${eq} l.id`
const isNamed = (queue: string): string =>
  `${queue} operator(pg_catalog.>) $2::text and pg_catalog.starts_with(${queue}, $1::text)`

/**
 * The lanes of the queues that begin with $1 and come after $2, of at most $3 queues. A paused queue without lanes is one row
 * without a lane.
 */
export const listLanes = statement(
  `with page as (
    select n.name from (
      select l.queue as name from {schema}.lane l where ${isNamed('l.queue')}
      union
      select q.name from {schema}.queue q where q.paused_at is not null and ${isNamed('q.name')}
    ) n order by n.name limit $3::text::integer
  )
  select p.name::text as "queue", l.name::text as "name", l.version::text as "version", l.id::text as "lane",
    {schema}.micros(q.paused_at)::text as "pausedAt", q.paused_by::text as "pausedBy",
    ${counted('ready', inReadyIndex, 'j.priority desc, j.id')},
    ${counted('scheduled', indexedIn('scheduled', 'l'), 'j.lane, j.id')},
    ${counted('dead', indexedIn('dead', 'l'), 'j.lane, j.id')},
    {schema}.micros((select j.created_at from {schema}.job j where ${inReadyIndex} and j.state ${eq} 'ready' order by j.priority desc, j.id limit 1))::text as "firstCreatedAt"
  from page p left join {schema}.queue q on q.name ${eq} p.name left join {schema}.lane l on l.queue ${eq} p.name
  order by p.name, l.name, l.version`,
  { readOnly: true },
)

const isAlive = `pg_catalog.date_part('epoch', {schema}.clock() operator(pg_catalog.-) w.seen_at) operator(pg_catalog.<) 30`

/** Reads whether the queue of a lane is paused, and whether a live worker takes jobs of the lane. */
export const readTakers = statement(
  `select (q.paused_at is not null)::text as "isPaused",
    exists (select from {schema}.worker w where l.id ${eq} any (w.lanes) and ${isAlive})::text as "isTaken"
  from {schema}.lane l left join {schema}.queue q on q.name ${eq} l.queue
  where l.queue ${eq} $1::text and l.name ${eq} $2::text and l.version ${eq} $3::text::integer`,
  { readOnly: true },
)

const isRunning = `j.state ${eq} 'running'`

/** The most claimed jobs that a count of running jobs reads, in all queues. No index has the running jobs; see `job_held` in sql/0026_job.sql. */
export const MAX_HELD = 20_000

const held = `select pg_catalog.unnest(h.ids) from {schema}.job_held h limit ${MAX_HELD + 1}`

/** The number of running jobs in each of these lanes. The row without a lane has the number of claimed jobs that were read. */
export const countRunning = statement(
  `select j.lane::text as "lane", count(*)::text as "count" from {schema}.job j
    where j.id ${eq} any (array(${held})) and ${isRunning} and j.lane ${eq} any ($1::text::integer[]) group by j.lane
  union all
  select null, (select count(*) from (${held}) c)::text`,
  { readOnly: true },
)

/** The workers after a place, oldest first. $1: true for live workers, false for the others, null for both. */
export const listWorkers = statement(
  `with page as (
    select w.*, ${isAlive} as is_alive from {schema}.worker w
    where ($1::text is null or (${isAlive})::text ${eq} $1::text)
      and ({schema}.micros(w.started_at), w.id) operator(pg_catalog.>) ($2::text::bigint, $3::text)
    order by w.started_at, w.id limit $4::text::integer
  )
  select w.id::text as "id", w.host::text as "host", w.pid::text as "pid", w.concurrency::text as "concurrency",
    {schema}.micros(w.started_at)::text as "startedAt", {schema}.micros(w.seen_at)::text as "seenAt",
    w.is_alive::text as "isAlive",
    (select pg_catalog.json_agg(pg_catalog.json_build_object('queue', l.queue, 'name', l.name, 'version', l.version) order by l.queue, l.name)
      from {schema}.lane l where l.id ${eq} any (w.lanes))::text as "lanes",
    (select pg_catalog.json_agg(j.id::text order by j.id) from {schema}.job j
      where j.id ${eq} any (array(select pg_catalog.unnest(h.ids) from {schema}.job_held h where h.worker ${eq} w.id))
        and ${isRunning} and j.worker ${eq} w.id)::text as "running"
  from page w order by w.started_at, w.id`,
  { readOnly: true },
)
