import { statement } from '../postgres/statement.js'

/** See sql/0028_job_add.sql. */
export const addJobs = statement(
  `select {schema}.job_add($1::text::text[], $2::text::text[], $3::text::integer[], $4::text::integer[], $5::text::double precision[], $6::text::bigint[], $7::text::double precision[],
    $8::text::integer[], $9::text::smallint[], $10::text::json, $11::text::integer[], $12::text::text[])::text as ids`,
)

export const findLane = statement(
  'select {schema}.job_lane_id($1::text, $2::text, $3::text::integer)::text as lane',
)

/** See sql/0029_job_claim.sql. */
export const claimAtCursors = statement(
  'select {schema}.job_claim($1::text::text[], $2::text::integer[], $3::text::integer[], $4::text::integer[], $5::text::bigint[], $6::text::bigint[])::text as result',
)

export const scanJobs = statement(
  'select {schema}.job_claim_full_scan($1::text::text[], $2::text::integer[], $3::text::integer[], $4::text::bigint[])::text as result',
)

export const claimOneByOne = statement(
  'select {schema}.job_claim_one_by_one($1::text, $2::text::integer, $3::text::integer[], $4::text::bigint[])::text as result',
)

export const promoteJobs = statement('select {schema}.job_promote($1::text::integer)::text as result')

export const expireJobs = statement('select {schema}.job_expire($1::text::integer)::text as count')

/** See sql/0031_job_complete.sql. */
export const completeJobs = statement(
  'select {schema}.job_complete($1::text::bigint[], $2::text::bigint[], $3::text::json, $4::text::integer[])::text as result',
)

export const completeJob = statement(
  'select {schema}.job_complete_one($1::text::bigint, $2::text::bigint, $3::text::json, $4::text::integer, $5::text::integer)::text as state',
)

export const completeJobWith = statement(
  'select {schema}.job_complete_or_raise($1::text::bigint, $2::text::bigint, $3::text::json, $4::text::integer, $5::text::integer)::text as state',
)

export const settleJobs = statement('select {schema}.job_settle($1::text::json)::text as result')

export const settleJob = statement(
  'select {schema}.job_settle_one($1::text::json, $2::text::integer)::text as state',
)

export const renewLeases = statement(
  'select {schema}.job_heartbeat($1::text::text[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[])::text as result',
)

export const reportProgress = statement(
  'select {schema}.job_record_progress($1::text::bigint, $2::text::bigint, $3::text::json, $4::text::bigint, $5::text::integer)::text as state',
)

/** See sql/0036_job_recover.sql. */
export const recoverJobs = statement(
  'select {schema}.job_recover($1::text::integer, $2::text::bigint[])::text as result',
)

export const releaseOrphans = statement(
  'select {schema}.job_release_orphaned($1::text::text[], $2::text::bigint[])::text as count',
)

/** See sql/0035_job_operate.sql. */
export const cancelJob = statement(
  'select {schema}.job_cancel($1::text::bigint, $2::text::json, $3::text::integer)::text as result',
)

export const redriveJobs = statement('select {schema}.job_redrive($1::text::bigint[])::text as result')

export const discardJobs = statement('select {schema}.job_discard($1::text::bigint[])::text as ids')

export const pauseQueue = statement(
  'select {schema}.queue_pause($1::text, $2::text, $3::text::integer)::text as state',
)

export const resumeQueue = statement('select {schema}.queue_resume($1::text)::text as state')

export const enterWorker = statement(
  'select {schema}.worker_register($1::text, $2::text, $3::text::integer, $4::text::integer[], $5::text::integer)::text as state',
)

export const leaveWorker = statement(
  'delete from {schema}.worker w where w.id operator(pg_catalog.=) any ($1::text::text[]) returning w.id::text as id',
)

export const forgetWorkers = statement(
  'select {schema}.worker_delete_stale($1::text::integer)::text as count',
)

export const maintainHistory = statement(
  'select {schema}.job_history_maintain($1::text::integer[], $2::text::integer)::text as count',
)
