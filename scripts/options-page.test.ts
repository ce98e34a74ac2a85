import { join } from 'node:path'
import { expect, it } from 'vitest'
import { duration } from '../src/options/number-options.js'
import { required } from '../src/options/option.js'
import { optionTable } from '../src/options/option-table.js'
import { oneOf } from '../src/options/value-options.js'
import { Types } from './conventions/types.mjs'
import { findTables, renderTable } from './options-page.mjs'

const file = join('src', 'call.ts')
const source = `
import { optionTable } from './option-table.js'
interface Base {
  /** How long a holder lives without renewal. Default 30,000. */
  readonly leaseMs?: number
}
export interface CallOptions extends Base {
  /**
   * What to do in a case,
   * see {@link Base}.
   *
   * @example more
   */
  readonly ifDown: 'fail' | 'allow' | undefined
  readonly plain?: string
}
export const callOptions = optionTable<CallOptions>()('dibs.call, and more', {})
const inner = optionTable<Base>()('inner', {})
export const other = 5
`
const types = new Types(() => source)

it('finds the exported tables of a file', () => {
  expect(findTables(types, file).map(({ name }) => name)).toEqual(['callOptions'])
})

it('takes types and descriptions from the interface, and the rest from the table', () => {
  const table = optionTable<{ leaseMs?: number; ifDown: 'fail' | 'allow'; plain?: 'a|b' }>()(
    'dibs.call, and more',
    {
      leaseMs: duration({ default: 30_000, min: 50, max: 86_400_000 }),
      ifDown: required(oneOf(['fail', 'allow'])),
      plain: oneOf(['a|b']),
    },
  )
  const [declared] = findTables(types, file)
  expect(renderTable(types, declared, table)).toBe(`### \`dibs.call\`, and more

| option | type | default | bounds | |
|---|---|---|---|---|
| \`leaseMs\` | \`number\` | 30,000 (30 s) | 50 to 86,400,000 | How long a holder lives without renewal. |
| \`ifDown\` | \`'fail' \\| 'allow'\` | *required* |  | What to do in a case, see \`Base\`. |
| \`plain\` | \`string\` | – |  |  |
`)
})

it('has no section for calls without options', () => {
  const [declared] = findTables(types, file)
  expect(renderTable(types, declared, optionTable<object>()('dibs.call', {}))).toBe('')
})
