import { expect, it } from 'vitest'
import { shorterOf, timeoutIn } from './timeout-in.js'

it.each([
  ['set lock_timeout = 200', 200],
  [`set local lock_timeout to '2s'`, 2_000],
  [`begin; set local statement_timeout = '1min'`, 60_000],
  [`select set_config('lock_timeout', '50ms', true)`, 50],
  [`select set_config('lock_timeout', $1, true)`, 1],
  ['set statement_timeout = 0', undefined],
  [`select setting from pg_settings where name = 'statement_timeout'`, undefined],
  ['show lock_timeout', undefined],
  ['select 1', undefined],
])('%s', (text, expected) => {
  expect(timeoutIn(text)).toBe(expected)
})

it('the shorter one counts', () => {
  expect([shorterOf(1, 2), shorterOf(undefined, 2), shorterOf(1, undefined)]).toEqual([1, 2, 1])
})
