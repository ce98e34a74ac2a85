import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName } from '../../../test/database.js'
import { cases, optionsOf, tables } from '../../../test/races.js'
import { explore } from './explore.js'

const schema = freshName('races')
const target = new URL(directUrl)
target.searchParams.set('options', `-c search_path=${schema}`)
const url = target.href

beforeAll(async () => {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query(`create schema ${schema}; ${tables}`)
  await client.end()
})
afterAll(() => dropSchema(schema))

describe.each(cases)('$name', (one) => {
  it(`is ${one.isWrong ? 'wrong' : 'right'} with two actors, in every schedule`, async () => {
    const report = await explore({ url, ...optionsOf(one, 2), throws: false })
    console.log(report.race?.printout ?? report.summary)
    expect(report.verdict).toBe(one.isWrong ? 'race' : 'passed')
    if (!one.isWrong) expect(report.isExhaustive).toBe(true)
  })
  it(`is ${one.isWrong ? 'wrong' : 'right'} with three actors, to two preemptions`, {
    timeout: 60_000,
  }, async () => {
    const report = await explore({
      url,
      ...optionsOf(one, 3),
      bound: { preemptions: 2, schedules: 3_000 },
      throws: false,
    })
    console.log(report.race?.printout ?? report.summary)
    expect(report.verdict).toBe(one.isWrong ? 'race' : 'passed')
    if (!one.isWrong) expect(report.preemptions ?? 2).toBe(2)
  })
})
