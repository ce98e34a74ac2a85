import { expect, it, onTestFinished } from 'vitest'
import { dropSchema, freshName } from '../../test/database.js'
import { startCli, urlWithPassword } from '../../test/start-cli.js'

function freshSchema(): string {
  const schema = freshName()
  onTestFinished(() => dropSchema(schema))
  return schema
}

/** Runs `dibs migrate` to its end. */
async function migrate(schema: string, ...more: string[]) {
  const cli = startCli(['migrate', '--url', urlWithPassword(), '--schema', schema, ...more])
  return { code: await cli.exit, output: cli.output, errors: cli.errors }
}

it('says what it applied, and the next time that there is nothing to do', async () => {
  const schema = freshSchema()
  const first = await migrate(schema)
  expect(first).toMatchObject({ code: 0, errors: '' })
  expect(first.output).toMatch(/^Applied migration 1 \(clock\) in \d+ ms$/m)
  expect(first.output).toMatch(new RegExp(`^Schema "${schema}" is now at version \\d+$`, 'm'))
  for (const more of [[], ['--check']]) {
    const next = await migrate(schema, ...more)
    expect(next).toMatchObject({ code: 0, errors: '' })
    expect(next.output).toMatch(new RegExp(`^Schema "${schema}" is up to date at version \\d+\n$`))
  }
})

it('only checks with --check', async () => {
  const schema = freshSchema()
  for (let n = 0; n < 2; n++) {
    const { code, output, errors } = await migrate(schema, '--check')
    expect([code, output]).toEqual([1, ''])
    expect(errors).toMatch(new RegExp(`^error: Schema "${schema}" is not there yet .*dibs migrate.*\n$`))
  }
})

it('lets several processes migrate at once', async () => {
  const schema = freshSchema()
  const all = await Promise.all([migrate(schema), migrate(schema), migrate(schema)])
  expect(all.map(({ code }) => code)).toEqual([0, 0, 0])
  expect(all.filter(({ output }) => output.includes('Applied migration 1 '))).toHaveLength(1)
})

it('tells in one message that there is no database, and ends with 1', async () => {
  const url = new URL(urlWithPassword())
  url.pathname = '/none_such'
  const cli = startCli(['migrate', '--url', url.href])
  expect(await cli.exit).toBe(1)
  expect(cli.errors).toMatch(/^error: The server at .*\/none_such refuses the connection: .*\n$/)
})
