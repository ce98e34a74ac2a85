import { it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { threeActors, twoActors } from '../../../../test/generated-programs.js'
import { schema } from '../../../../test/reduction-corpus.js'
import { checkGenerated } from '../../../../test/self-check.js'

const { url } = exploredSchema(schema)
const numRuns = Number(process.env.SOAK_RUNS ?? 300)

it('two actors', () => checkGenerated(url, twoActors, { numRuns }))

it('three actors', () => checkGenerated(url, threeActors, { numRuns: Math.ceil(numRuns / 3) }))
