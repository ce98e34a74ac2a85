import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { hostile, hostileSchema, hostileTables } from '../../../../test/hostile-programs.js'
import { exploreProgram } from '../../../../test/programs.js'
import { schema, tables } from '../../../../test/reduction-corpus.js'
import { remote, remoteSchema, remoteTables } from '../../../../test/remote-programs.js'
import { sorted } from '../../../../test/self-check.js'

const { url } = exploredSchema(schema + hostileSchema + remoteSchema)
const all = [...tables, ...hostileTables, ...remoteTables]

/** Those with the most orders, and all but every fourth of the others, run with the soak alone. */
const LONG = ['a lock tried in vain, first', 'resumed draws', 'hidden session lock']
const isWanted = ([name]: [string, unknown], n: number): boolean =>
  (process.env.SOAK_SECONDS ?? process.env.DIBS_TEST_ALL) !== undefined ||
  (!LONG.includes(name) && n % 4 === 0)

describe('a reduced search misses nothing of', () => {
  it.each(Object.entries({ ...hostile, ...remote }).filter(isWanted))(
    '%s',
    { timeout: 60_000 },
    async (_name, program) => {
      const whole = await exploreProgram(program, { url, tables: all, everyOrder: true })
      const part = await exploreProgram(program, { url, tables: all, everyOrder: false })
      expect(sorted(part.ends)).toEqual(sorted(whole.ends))
    },
  )
})
