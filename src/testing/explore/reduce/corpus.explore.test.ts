import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { corpus, schema } from '../../../../test/reduction-corpus.js'
import { exploringAt, sorted } from '../../../../test/self-check.js'

const { url } = exploredSchema(schema)
const { all, reduced } = exploringAt(url)

describe('a reduced search reaches every end that a full search reaches', () => {
  it.each(Object.entries(corpus))('%s', { timeout: 60_000 }, async (_name, program) => {
    const whole = await all(program)
    const part = await reduced(program)
    expect(whole.report.isComplete, whole.report.summary).toBe(true)
    expect(part.report.isComplete, part.report.summary).toBe(true)
    expect(sorted(part.ends)).toEqual(sorted(whole.ends))
  })
})
