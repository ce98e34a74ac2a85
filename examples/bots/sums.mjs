// What a bot does, and what all processes know of it: add two numbers, and write the sum into a table.

/**
 * @param {import('dibs').Dibs} dibs
 */
export const defineSums = (dibs) =>
  dibs.jobs({
    sum: {
      queue: 'bots',
      // A bot that is killed says nothing: after a second without a heartbeat the others may have what it held. Half a minute is usual.
      leaseMs: 1_000,
      maxAttempts: 20,
      // What the handler writes through `ctx.tx` and the end of the job commit together, or not at all.
      transactional: true,
    },
  })

/** No key on `job`, on purpose: a sum that is written twice would be seen in the end. */
export const LEDGER = `
  drop table if exists bots_example;
  create table bots_example (job text not null, sum int not null, pid int not null)`

/** Slow on purpose: somebody wants to see it. */
export const sumHandler =
  (workMs) =>
  async ({ a, b }, ctx) => {
    await new Promise((resolve) => setTimeout(resolve, workMs * (0.5 + Math.random())))
    ctx.signal.throwIfAborted()
    await ctx.tx.query('insert into bots_example (job, sum, pid) values ($1, $2, $3)', [
      ctx.id,
      a + b,
      process.pid,
    ])
    return a + b
  }
