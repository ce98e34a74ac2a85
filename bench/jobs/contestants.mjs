// The contestants by name. Each module opens one contestant in one process:
//
//   open({ url, redisUrl, schema, connections, hints, … }) -> undefined if it is not there to be measured, or
//     connections           of this process, for adding
//     addMany(payloads)     one batch; resolves when it is committed
//     addOne(payload)       one job; resolves when it is committed
//     work({ concurrency, instances, onStart(payload) }) -> { stop(), knobs }
//     outcomes()            -> { left, ended }: jobs that have no outcome yet, and outcomes kept, undefined for those that keep none
//     clear()               forgets all jobs
//     fill({ kind, count }) for the growth rows: so many more jobs that are `waiting`, in `other` lanes, or `later`
//     close()
//
// `setUp: true` once per contestant, before any other process opens it: makes tables.
import { openBullOnPostgres, openBullOnRedis } from './bullmq.mjs'
import { openByHand } from './by-hand.mjs'
import { openDibs } from './dibs.mjs'
import { openGraphile } from './graphile-worker.mjs'
import { openPgBoss } from './pg-boss.mjs'

/** A name is a key of what is printed; `schema` keeps them apart on the one server. */
export const contestants = {
  'dibs, no history': { schema: 'bench_dibs', open: openDibs, keepMs: 0 },
  'dibs, history': { schema: 'bench_dibs_history', open: openDibs, keepMs: 86_400_000, grows: true },
  'Graphile Worker': { schema: 'bench_graphile', open: openGraphile, isPeer: true },
  'pg-boss': { schema: 'bench_boss', open: openPgBoss, isPeer: true },
  'BullMQ, PostgreSQL': { schema: 'bench_bull', open: openBullOnPostgres, isPeer: true },
  'BullMQ, Redis (in memory only)': { schema: 'bench_bull_redis', open: openBullOnRedis },
  'by hand, bare': { schema: 'bench_hand', open: openByHand },
  'by hand, fence': { schema: 'bench_hand_fence', open: openByHand, fence: true },
  'by hand, fence and history': {
    schema: 'bench_hand_history',
    open: openByHand,
    fence: true,
    history: true,
    grows: true,
  },
  'by hand, fence, adds coalesced': {
    schema: 'bench_hand_coalesced',
    open: openByHand,
    fence: true,
    coalesces: true,
    only: 'add one',
  },
}

/** Some differ from another one in one contest only. */
export const takesPart = (name, contest) => contest.startsWith(contestants[name].only ?? '')

export const openContestant = (name, options) => {
  const { open, ...own } = contestants[name]
  return open({ ...own, ...options })
}
