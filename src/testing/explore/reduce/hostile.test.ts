import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { hostile, schema2, tables2 } from '../../../../test/hostile-programs.js'
import { exploreProgram } from '../../../../test/programs.js'
import { schema, tables } from '../../../../test/reduction-corpus.js'

const { url } = exploredSchema(schema + schema2)
const only = new RegExp(process.env.ONLY ?? '.')

describe('a reduced search misses nothing of', () => {
  it.each(Object.entries(hostile).filter(([name]) => only.test(name)))(
    '%s',
    { timeout: 60_000 },
    async (_name, program) => {
      const all = [...tables, ...tables2]
      const whole = await exploreProgram(program, { url, tables: all, everyOrder: true })
      const part = await exploreProgram(program, { url, tables: all, everyOrder: false })
      const missing = [...whole.ends].filter((end) => !part.ends.has(end))
      expect(
        missing,
        `${whole.report.schedules} ${part.report.schedules}+${part.report.reduction.repeats} ${JSON.stringify(part.report.reduction)}`,
      ).toEqual([])
    },
  )
})
