import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { hostile, hostileSchema, hostileTables } from '../../../../test/hostile-programs.js'
import { exploreProgram } from '../../../../test/programs.js'
import { schema, tables } from '../../../../test/reduction-corpus.js'
import { remote, remoteSchema, remoteTables } from '../../../../test/remote-programs.js'
import { sorted } from '../../../../test/self-check.js'

const { url } = exploredSchema(schema + hostileSchema + remoteSchema)
const all = [...tables, ...hostileTables, ...remoteTables]

describe('a reduced search reaches every end of', () => {
  it.each(Object.entries({ ...hostile, ...remote }))('%s', { timeout: 60_000 }, async (_name, program) => {
    const whole = await exploreProgram(program, { url, tables: all, everyOrder: true })
    const part = await exploreProgram(program, { url, tables: all, everyOrder: false })
    expect(sorted(part.ends)).toEqual(sorted(whole.ends))
  })
})
