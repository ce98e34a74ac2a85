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

/** One snapshot: a job is either live, or its last attempt tells how it ended. */
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
  from {schema}.job_history h where h.id ${eq} $1::text::bigint order by h.ended_at, h.fence limit 1000`,
  { readOnly: true },
)

/** The dead of a lane, as its index has them. With `j.lane = …`, and where most jobs are dead, PostgreSQL goes through all of them by their ids, once for each lane. */
const deadOf = (l: string): string =>
  `j.listed ${eq} 'dead' and (j.lane, j.id) operator(pg_catalog.>) (${l}.id, 0::bigint) and j.lane operator(pg_catalog.<=) ${l}.id`

/** Of these lanes, from a place on: queues and names, in pairs. With a part of the name, the code or the message of its error. */
export const listDead = statement(
  `select ${live}, j.lane::text as "lane" from {schema}.lane l cross join lateral (
    select * from {schema}.job j where ${deadOf('l')}
      and (j.lane, j.id) operator(pg_catalog.>) ($3::text::integer, $4::text::bigint)
      and ($5::text is null or pg_catalog.strpos(pg_catalog.concat_ws(E'\\n', ${['name', 'code', 'message'].map((field) => `j.error operator(pg_catalog.->>) '${field}'`).join(', ')}), $5::text) operator(pg_catalog.>) 0)
    order by j.lane, j.id limit $6::text::integer) j
  where l.id operator(pg_catalog.>=) $3::text::integer
    and exists (select from unnest($1::text::text[], $2::text::text[]) d (queue, name) where d.queue ${eq} l.queue and d.name ${eq} l.name)
  order by j.lane, j.id limit $6::text::integer`,
  { readOnly: true },
)

/** In the order of the index: without one, a thousand of many are cheapest to find by reading all. */
const counted = (state: string, condition: string, order: string): string =>
  `(select count(*) from (select from {schema}.job j where ${condition} and j.state ${eq} '${state}' order by ${order} limit 1001) c)::text as "${state}"`
const inLine = `j.listed ${eq} 'line' and j.lane ${eq} l.id`

/** What waits in each lane, counted to a thousand: the cost of a look must not grow with what there is. */
export const listLanes = statement(
  `select ${lane}, l.id::text as "lane", {schema}.micros(q.paused_at)::text as "pausedAt", q.paused_by::text as "pausedBy",
    ${counted('ready', inLine, 'j.priority desc, j.id')}, ${counted('dead', deadOf('l'), 'j.lane, j.id')},
    {schema}.micros((select j.created_at from {schema}.job j where ${inLine} and j.state ${eq} 'ready' order by j.priority desc, j.id limit 1))::text as "firstCreatedAt"
  from {schema}.lane l left join {schema}.queue q on q.name ${eq} l.queue order by l.queue, l.name, l.version`,
  { readOnly: true },
)

const isAlive = `pg_catalog.date_part('epoch', {schema}.clock() operator(pg_catalog.-) w.seen_at) operator(pg_catalog.<) 30`

/** Why nobody may have begun what is ready in a lane. */
export const readTakers = statement(
  `select (q.paused_at is not null)::text as "isPaused",
    exists (select from {schema}.worker w where l.id ${eq} any (w.lanes) and ${isAlive})::text as "isTaken"
  from {schema}.lane l left join {schema}.queue q on q.name ${eq} l.queue
  where l.queue ${eq} $1::text and l.name ${eq} $2::text and l.version ${eq} $3::text::integer`,
  { readOnly: true },
)

const running = `{schema}.job j where j.id ${eq} any (array(select pg_catalog.unnest(h.ids) from {schema}.job_held h)) and j.state ${eq} 'running'`

/** How many jobs run, by lane. */
export const countRunning = statement(
  `select j.lane::text as "lane", count(*)::text as "count" from ${running} group by j.lane`,
  { readOnly: true },
)

export const listWorkers = statement(
  `select w.id::text as "id", w.host::text as "host", w.pid::text as "pid", w.concurrency::text as "concurrency",
    {schema}.micros(w.started_at)::text as "startedAt", {schema}.micros(w.seen_at)::text as "seenAt",
    (${isAlive})::text as "isAlive",
    (select pg_catalog.json_agg(pg_catalog.json_build_object('queue', l.queue, 'name', l.name, 'version', l.version) order by l.queue, l.name)
      from {schema}.lane l where l.id ${eq} any (w.lanes))::text as "lanes",
    coalesce(r.ids, '[]'::json)::text as "running"
  from {schema}.worker w
  left join (select j.worker, pg_catalog.json_agg(j.id::text order by j.id) as ids from ${running} group by j.worker) r
    on r.worker ${eq} w.id
  order by w.started_at, w.id limit 1000`,
  { readOnly: true },
)
