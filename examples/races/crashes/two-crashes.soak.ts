import { crashLoop } from 'dibs/testing'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { optionsOf } from './crash.js'
import { crashes } from './index.js'

const all = await Promise.all(
  Object.entries(crashes).map(async ([id, load]) => ({ id, crash: (await load()).crash })),
)

describe.each(all)('recovery may crash as well: $id', ({ crash }) => {
  const { url } = exploredSchema(crash.tables)
  const right = crash.variants.filter(({ failsAt }) => failsAt === null)

  it.each(right)('$name', async (variant) => {
    const report = await crashLoop({
      ...optionsOf(crash, variant),
      url,
      modes: ['crash'],
      duringRecovery: true,
    })
    expect(report.verdict, report.printout).toBe('passed')
    expect(report.points.some(({ fault }) => fault?.again !== undefined)).toBe(true)
  })
})
