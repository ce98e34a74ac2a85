import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import type { Lock } from '../../src/locks/lock.js'
import { dropSchema, freshName, throughPool } from '../database.js'
import { joinedCalls, longCalls, prepareCall, prepareJoinedCalls, snapshot } from '../joined-calls.js'
import type { Context } from './harness.js'

/**
 * Joined calls that nobody awaits, in a transaction that the library commits: each is done whole, or it fails and nothing of
 * it is kept. Nothing is left that looks as if it were still going on.
 */
export function describeOpenCalls({ schema, admin, harness, transaction }: Context): void {
  const own = freshName('open_calls')
  let dibs: Dibs
  let lock: Lock

  beforeAll(async () => {
    dibs = await Dibs.open({ pool: admin, schema: own, ...throughPool, listen: false })
    await prepareJoinedCalls(dibs, admin, schema)
    lock = await dibs.lock('held', { leaseMs: 600_000 })
  })
  afterAll(async () => {
    await lock.release()
    await dibs.close()
    await dropSchema(own)
  })

  /** Starts the call, perhaps waits until its first statements are done, and lets the library commit. */
  async function abandon(name: string, isUnderWay: boolean) {
    const key = freshName('key')
    let open = (): void => {}
    const gate = new Promise<void>((resolve) => {
      open = resolve
    })
    const parts = { dibs, lock, schema, gate, ...(await prepareCall(dibs, name, key)) }
    const before = await snapshot(admin, [own, schema])
    let call: Promise<unknown> = Promise.resolve()
    const commit = transaction(async (session, { tx }) => {
      call = joinedCalls[name]?.(parts, tx, key) ?? Promise.reject(new Error(`There is no call ${name}.`))
      call.catch(() => {})
      // Far more statements than any call sends before its function waits at the gate.
      if (isUnderWay) for (let n = 0; n < 12; n++) await session.query('select 1')
    })
    const [committed] = await Promise.allSettled([commit])
    open()
    const [called] = await Promise.allSettled([call])
    return { committed, called, before, after: await snapshot(admin, [own, schema]) }
  }

  describe.each(Object.keys(joinedCalls))('%s, not awaited', (name) => {
    const moments: [string, boolean][] = [
      ...(harness.losesCommit ? [] : ([['before its first answer', false]] as [string, boolean][])),
      ['in the middle', true],
    ]
    it.each(moments)('is done whole or not at all when the library commits %s', async (_, isUnderWay) => {
      const { committed, called, before, after } = await abandon(name, isUnderWay)
      if (committed?.status === 'rejected') expect(called?.status).toBe('rejected')
      // A single statement may slip in behind COMMIT where the library hides its client: it is told so, and done whole.
      const hasSlipped =
        harness.adapt !== undefined &&
        !longCalls.includes(name) &&
        called?.status === 'rejected' &&
        `${called.reason}`.includes('perhaps outside')
      if (called?.status === 'rejected' && !hasSlipped) expect(after).toBe(before)
      expect(after).not.toContain('pending')
    })
  })

  it.each(longCalls.filter((name) => name.startsWith('dibs.')))(
    '%s makes COMMIT fail while its function runs, and the error names the call',
    async (name) => {
      const { committed, called } = await abandon(name, true)
      expect(called?.status).toBe('rejected')
      const { reason } = committed as PromiseRejectedResult
      const text = `${reason?.message} ${reason?.constraint ?? reason?.constraint_name} ${reason?.detail} ${JSON.stringify(reason)}`
      expect(text).toContain('await_joined_calls_before_commit')
    },
  )

  it('commits after `set constraints all immediate`', async () => {
    const key = freshName('key')
    await transaction(async (session, { tx }) => {
      await session.query('set constraints all immediate')
      await dibs.once({ scope: 'immediate', key, tx }, async () => 1)
      await session.query('set constraints all immediate')
    })
    expect(await dibs.claims.get({ scope: 'immediate', key })).toMatchObject({ status: 'active' })
  })
}
