// How much of everything; what is printed with the results. Short by default: a look at whether ratios are about right.
const setting = (name, value) => Number(process.env[`BENCH_JOBS_${name}`] ?? value)

export const settings = {
  rounds: setting('ROUNDS', 3),
  /** Duration of a round in the contests that add jobs. */
  roundMs: setting('ROUND_MS', 1_500),
  /** Jobs of one round of claim, run, complete: for those who do some ten thousand a second, and for the slow. */
  jobs: setting('COUNT', 30_000),
  slowJobs: setting('SLOW_COUNT', 4_000),
  batch: setting('BATCH', 1_000),
  /** Jobs per claim of the hand-written loops that claim ahead, as Graphile Worker does. */
  aheadBatch: setting('AHEAD_BATCH', 500),
  samples: setting('SAMPLES', 300),
  /** Growth: jobs that are in the way, those that are run beside them, how long a snapshot is held, and how long is watched before and after. */
  crowd: setting('CROWD', 100_000),
  crowdJobs: setting('CROWD_JOBS', 40_000),
  heldS: setting('HELD_S', 20),
  aroundS: setting('AROUND_S', 10),
  pacePerSecond: setting('PACE', 1_000),
}
