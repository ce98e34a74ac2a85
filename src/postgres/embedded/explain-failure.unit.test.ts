import { describe, expect, it } from 'vitest'
import { asEmbeddedServerError, explainFailure } from './explain-failure.js'

/** Words of PostgreSQL and of systems that a test cannot bring about everywhere. */
describe('explainFailure', () => {
  it.each([
    ['FATAL:  could not create shared memory segment: No space left on device', 'shared-memory'],
    [
      'FATAL:  could not resize shared memory segment "/PostgreSQL.1" to 1 bytes: No space left on device',
      'shared-memory',
    ],
    ['FATAL:  could not map anonymous shared memory: Cannot allocate memory', 'shared-memory'],
    ['FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use', 'already-running'],
    ['LOG:  could not bind IPv4 address "127.0.0.1": Address already in use', 'port-taken'],
    ['PANIC:  could not write to file "pg_wal/xlogtemp.1": No space left on device', 'disk-full'],
    ['initdb: error: could not write file "x": Disk quota exceeded', 'disk-full'],
    ["ENOSPC: no space left on device, mkdir '/x'", 'disk-full'],
    ['FATAL:  invalid value for parameter "lc_messages": "de_DE.UTF-8"', 'locale-missing'],
    ['initdb: error: invalid locale name "de_DE.UTF-8"', 'locale-missing'],
    [
      'FATAL:  database locale is incompatible with operating system\nDETAIL:  The database was initialized with LC_COLLATE "xx", which is not recognized by setlocale().',
      'locale-missing',
    ],
    ['FATAL:  unrecognized configuration parameter "x"', 'bad-setting'],
    ['FATAL:  -5 is outside the valid range for parameter "max_connections" (1 .. 262143)', 'bad-setting'],
    ['FATAL:  database files are incompatible with server', 'other-version'],
    ['FATAL:  data directory "/x" has wrong ownership', 'no-permission'],
    ['FATAL:  data directory "/x" has invalid permissions', 'no-permission'],
    ["EROFS: read-only file system, mkdir '/x'", 'no-permission'],
    ['FATAL:  something never seen before', 'unknown'],
  ])('%s', (words, reason) => {
    const error = explainFailure(`LOG:  starting PostgreSQL 18.4\n${words}`, '/project/.dibs', '/log')
    expect(error).toMatchObject({ reason, folder: '/project/.dibs', code: 'DIBS_EMBEDDED_SERVER' })
    expect(error.message).toContain(words.split('\n')[0])
    expect(error.message).toContain('/project/.dibs')
    expect(error.message).toContain('Its log is /log.')
    expect(error.message).not.toContain('starting PostgreSQL') // only what tells something
  })

  it('keeps the error of the system as its cause', () => {
    const cause = Object.assign(new Error("EACCES: permission denied, mkdir '/x'"), { code: 'EACCES' })
    expect(asEmbeddedServerError(cause, '/x')).toMatchObject({ reason: 'no-permission', cause })
  })
})
