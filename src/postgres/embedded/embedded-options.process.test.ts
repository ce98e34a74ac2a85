import { expect, it } from 'vitest'
import { Dibs } from '../../dibs.js'

const refused = (options: object): Promise<unknown> =>
  Dibs.open(options).then(
    () => 'opened',
    (error) => error,
  )

it.each([
  ['embedded', 'x', 'must be an object of options, not a string'],
  ['embedded', null, 'must be an object of options, not null'],
  ['embedded', true, 'must be an object of options, not a boolean'],
  ['embedded.folder', { folder: '/x' }, 'Unknown option "embedded.folder". Expected one of: dir, port'],
  ['embedded.dir', { dir: '' }, 'must be a path'],
  ['embedded.dir', { dir: 5 }, 'must be a path, not a number'],
  ['embedded.dir', { dir: '/x', temporary: true }, 'cannot be chosen for a temporary server'],
  ['embedded.binaries', { binaries: [] }, 'must be a path'],
  ['embedded.port', { port: 0 }, 'must be a whole number from 1 to 65535, not 0'],
  ['embedded.port', { port: '5432' }, 'must be a whole number from 1 to 65535, not "5432"'],
  ['embedded.temporary', { temporary: 'yes' }, 'must be true or false'],
  ['embedded.settings', { settings: [] }, 'must be an object'],
  ['embedded.settings.port', { settings: { port: 5432 } }, 'is set by `embedded.port`'],
  ['embedded.settings.Listen_Addresses', { settings: { Listen_Addresses: '*' } }, 'cannot be changed'],
  ['embedded.settings.a b', { settings: { 'a b': 1 } }, 'is not the name of a setting'],
  ['embedded.settings.work_mem', { settings: { work_mem: '1\n2' } }, 'must be a string of one line'],
  ['embedded.settings.work_mem', { settings: { work_mem: Number.NaN } }, 'must be a string of one line'],
])('%s of %j is refused', async (field, embedded, problem) => {
  expect(await refused({ embedded })).toMatchObject({
    name: 'InvalidInputError',
    field,
    message: expect.stringContaining(problem),
  })
})

it('refuses two ways to say where to connect', async () => {
  expect(await refused({ embedded: {}, url: 'postgres://localhost/x' })).toMatchObject({
    name: 'InvalidInputError',
    message: expect.stringContaining('`embedded` and `url` are two ways'),
  })
})
