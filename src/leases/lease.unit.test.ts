import { describe, expect, it } from 'vitest'
import type { LossReason } from '../errors.js'
import { Lease, type LeaseStart } from './lease.js'

class TestLease extends Lease {
  readonly losses: LossReason[] = []

  protected override onLost(reason: LossReason): Error {
    this.losses.push(reason)
    return new Error(reason)
  }
}

const leaseMs = 60_000
const started = (start: Partial<LeaseStart> = {}) => {
  const sentAt = Math.round(performance.now()) // whole, so that sums are exact
  return { sentAt, lease: new TestLease({ leaseMs, sentAt, ...start }) }
}

describe('a lease', () => {
  it('is due after a third of its time, and over a little before its time', () => {
    const { lease, sentAt } = started()
    expect(lease.renewAt).toBe(sentAt + leaseMs / 3)
    expect(lease.endsAt).toBeLessThan(sentAt + leaseMs)
    expect(lease.endsAt).toBeGreaterThan(sentAt + 0.98 * leaseMs)
  })

  it('lasts from when a renewal was sent, though an earlier renewal is confirmed last', () => {
    const { lease, sentAt } = started()
    lease.confirmRenewal(sentAt + 20_000, leaseMs)
    const { renewAt, endsAt } = lease
    lease.confirmRenewal(sentAt + 10_000, leaseMs)
    expect([lease.renewAt, lease.endsAt]).toEqual([renewAt, endsAt])
    lease.confirmRenewal(sentAt + 30_000, leaseMs)
    expect(lease.renewAt).toBe(sentAt + 30_000 + leaseMs / 3)
    expect(lease.endsAt).toBeGreaterThan(endsAt)
  })

  it('is not held for longer than its maximum', () => {
    const { lease, sentAt } = started({ maxHoldMs: 90_000 })
    expect(lease.beginRenewal(sentAt + 20_000)).toBe(leaseMs)
    lease.confirmRenewal(sentAt + 20_000, leaseMs)
    expect(lease.beginRenewal(sentAt + 60_000)).toBe(30_000)
    lease.confirmRenewal(sentAt + 60_000, 30_000)
    expect(lease.lossReasonAt(lease.endsAt)).toBe('max hold')
  })

  it('tells a process that was suspended from a database that did not answer', () => {
    const { lease, sentAt } = started()
    expect(lease.lossReasonAt(lease.endsAt - 1)).toBeUndefined()
    expect(lease.lossReasonAt(lease.endsAt)).toBe('expired')
    lease.beginRenewal(sentAt)
    expect(lease.lossReasonAt(lease.endsAt)).toBe('lost contact')
    expect(lease.lossReasonAt(lease.endsAt + 10_000)).toBe('expired')
  })

  it('is lost once, and its signal has the first reason, also if it is read later', () => {
    const { lease } = started()
    expect(lease.lose('stolen')).toBe(true)
    expect(lease.lose('expired')).toBe(false)
    lease.abort(new Error('later'))
    expect(lease.losses).toEqual(['stolen'])
    expect(lease.signal.reason.message).toBe('stolen')
  })

  it('that has ended is not lost any more', () => {
    const { lease } = started({ leftMs: 0 })
    lease.stopRenewal()
    lease.checkDeadline()
    expect(lease.losses).toEqual([])
    expect(lease.signal.aborted).toBe(false)
  })
})
