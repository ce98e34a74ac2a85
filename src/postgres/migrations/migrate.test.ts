import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import {
  createRole,
  directUrl,
  dropSchema,
  freshName,
  until,
  url,
  viaPgBouncer,
} from '../../../test/database.js'
import { fixtureSources } from '../../../test/fixtures.js'
import { BusyError, SchemaVersionError, SetupError } from '../../errors.js'
import { Database } from '../database.js'
import { onEvent } from '../events.js'
import { quoteIdentifier } from '../identifier.js'
import { checkMigrations, migrate } from './migrate.js'
import { readMigrations } from './read-migrations.js'

const all = readMigrations(fixtureSources)
const pool = new pg.Pool({ connectionString: url })
let schema: string
let database: Database

beforeAll(() => void pool.on('error', () => {}))

beforeEach(() => {
  schema = freshName()
  database = new Database(pool, { schema, prepared: !viaPgBouncer })
  return () => dropSchema(schema)
})

afterAll(() => pool.end())

const recorded = async () =>
  (
    await pool.query(
      `select version, name, compatible_from from ${quoteIdentifier(schema)}.migration order by 1`,
    )
  ).rows

const indexes = async () => {
  const { rows } = await pool.query(
    `select c.relname as name, i.indisvalid as valid from pg_index i join pg_class c on c.oid = i.indexrelid
     where c.relnamespace = $1::regnamespace order by 1`,
    [quoteIdentifier(schema)],
  )
  return Object.fromEntries(rows.map(({ name, valid }) => [name, valid]))
}

const expectComplete = async () => {
  expect(await recorded()).toEqual(
    all.map(({ version, name, compatibleFrom }) => ({ version, name, compatible_from: compatibleFrom })),
  )
  expect(await indexes()).toMatchObject({ item_owner_idx: true, item_price_idx: true })
}

describe('migrate', () => {
  it('applies all files in order, once, and tells of each', async () => {
    const applied: number[] = []
    const stop = onEvent('dibs:migration.applied', (event) => {
      if (event.schema === schema) applied.push(event.version)
    })
    await migrate(database, all)
    await migrate(database, all)
    stop()
    expect(applied).toEqual([1, 2, 3, 4])
    await expectComplete()
  })

  it('goes on where an older release stopped, with a newer one still welcome', async () => {
    await migrate(database, all.slice(0, 3))
    await migrate(database, all)
    await expectComplete()
    await migrate(database, all.slice(0, 3)) // the older pod starts again: compatible, nothing to do
    await expectComplete()
    await expect(migrate(database, all.slice(0, 2))).rejects.toThrow(SchemaVersionError)
  })

  it('applies a file whole or not at all', async () => {
    const broken = readMigrations([
      ...fixtureSources.slice(0, 1),
      {
        file: '0002_broken.sql',
        text: '-- compatible_from: 1\ncreate table {schema}.half (id int); select 1 / 0;\n',
      },
    ])
    await expect(migrate(database, broken)).rejects.toThrow('Migration 2 (broken) of schema')
    expect(await recorded()).toHaveLength(1)
    const { rows } = await pool.query('select to_regclass($1) as half', [`${quoteIdentifier(schema)}.half`])
    expect(rows).toEqual([{ half: null }])
  })

  it('does not record a file that ends the transaction it runs in', async () => {
    const sly = readMigrations([
      {
        file: '0001_sly.sql',
        text: '-- compatible_from: 1\ncreate table {schema}.sly (id int); select 1; abort;\n',
      },
    ])
    await expect(migrate(database, sly)).rejects.toThrow('begins or ends a transaction')
    await expect(recorded()).rejects.toThrow('does not exist')
  })

  it('says which setting cuts a build off each time', async () => {
    const role = freshName('hasty')
    const hasty = await createRole(role, 'superuser')
    await pool.query(`alter role ${role} set statement_timeout = '1s'`)
    const hastyPool = new pg.Pool({ connectionString: hasty })
    const holder = await pool.connect()
    await migrate(database, all.slice(0, 1))
    await holder.query(`begin; lock table ${quoteIdentifier(schema)}.item in share mode`)
    const error = await migrate(new Database(hastyPool, { schema, prepared: false }), all).catch(
      (reason) => reason,
    )
    expect(error).toBeInstanceOf(SetupError)
    expect(error.message).toContain('Migration 2 (item_owner_index)')
    expect(error.message).toContain('set statement_timeout = 0')
    await holder.query('rollback')
    holder.release()
    await hastyPool.end()
    await pool.query(`drop role ${role}`)
  })

  it('refuses a file that was changed after it was applied', async () => {
    await migrate(database, all)
    const changed = readMigrations(
      fixtureSources.map((source) => ({ ...source, text: `${source.text}-- changed\n` })),
    )
    await expect(migrate(database, changed)).rejects.toThrow('was applied with other content')
  })

  it('refuses a record with a gap', async () => {
    await migrate(database, all)
    await pool.query(`delete from ${quoteIdentifier(schema)}.migration where version = 2`)
    await expect(migrate(database, all)).rejects.toThrow(
      'migration 2 is missing although 3 (item_price) is recorded',
    )
  })

  it('serves two schemas side by side', async () => {
    const other = new Database(pool, { schema: freshName(), prepared: false })
    await Promise.all([migrate(database, all), migrate(other, all)])
    await expectComplete()
    await pool.query(`delete from ${quoteIdentifier(schema)}.item`)
    const { rows } = await pool.query(`select count(*)::int as n from ${quoteIdentifier(other.schema)}.item`)
    expect(rows).toEqual([{ n: 2000 }])
    await dropSchema(other.schema)
  })

  it('serves twenty callers at once', async () => {
    await Promise.all(Array.from({ length: 20 }, () => migrate(database, all)))
    await expectComplete()
  })
})

describe('a file that runs outside a transaction', () => {
  it('is built anew when an earlier run left an invalid index', async () => {
    await migrate(database, all.slice(0, 1))
    // How such a leftover comes about: a unique index, built concurrently over rows that are not unique.
    await pool.query(`update ${quoteIdentifier(schema)}.item set owner = 'same'`)
    await expect(
      pool.query(
        `create unique index concurrently item_owner_idx on ${quoteIdentifier(schema)}.item (owner)`,
      ),
    ).rejects.toThrow()
    expect(await indexes()).toMatchObject({ item_owner_idx: false })
    await migrate(database, all)
    await expectComplete()
  })

  it('is recorded without harm when an earlier run died after building it', async () => {
    await migrate(database, all.slice(0, 1))
    await pool.query(`create index concurrently item_owner_idx on ${quoteIdentifier(schema)}.item (owner)`)
    await migrate(database, all)
    await expectComplete()
  })

  it('does not wait for those who wait for it', async () => {
    // An old snapshot holds the index back while two more callers try for the lock all the time.
    const snapshot = new pg.Client(directUrl)
    await snapshot.connect()
    await migrate(database, all.slice(0, 1))
    await snapshot.query(
      `begin isolation level repeatable read; select 1 from ${quoteIdentifier(schema)}.item limit 1`,
    )
    const working = Promise.all(Array.from({ length: 3 }, () => migrate(database, all)))
    await until(async () => {
      const { rows } = await pool.query(
        `select 1 from pg_stat_activity where query like $1 and wait_event_type = 'Lock'`,
        [`%create index concurrently%${schema}%`],
      )
      return rows.length > 0
    }, 'the index to wait for the snapshot')
    await snapshot.query('rollback')
    await working
    await snapshot.end()
    await expectComplete()
  })

  it.each([1, 3])(
    'needs no second client of the pool, with a client for each of %i schemas',
    async (count) => {
      const small = new pg.Pool({ connectionString: url, max: count })
      const schemas = [schema, freshName(), freshName()].slice(0, count)
      await Promise.all(
        schemas.map((name) => migrate(new Database(small, { schema: name, prepared: false }), all)),
      )
      await small.end()
      await expectComplete()
      await Promise.all(schemas.slice(1).map(dropSchema))
    },
  )

  it('is not recorded when the builder of a dead process has left it INVALID meanwhile', async () => {
    await migrate(database, all.slice(0, 1))
    // The builder of a process that was killed: its session lives on in the server and waits for the table.
    const holder = await pool.connect()
    await holder.query(`begin; lock table ${quoteIdentifier(schema)}.item in share update exclusive mode`)
    const orphan = new pg.Client(directUrl)
    await orphan.connect()
    // Each of the two builders will wait for the other, and this one is to notice first and give up.
    await orphan.query("set deadlock_timeout = '10ms'")
    const { rows } = await orphan.query('select pg_backend_pid() as pid')
    const orphaned = orphan
      .query(
        `create index concurrently if not exists item_owner_idx on ${quoteIdentifier(schema)}.item (owner)`,
      )
      .catch((reason) => reason)
    const waits = async (condition: string, values: unknown[]) => {
      const found = await pool.query(
        `select 1 from pg_stat_activity where wait_event_type = 'Lock' and ${condition}`,
        values,
      )
      return found.rows.length > 0
    }
    await until(() => waits('pid = $1', [rows[0].pid]), 'the orphan to wait for the table')
    const working = migrate(database, all)
    await until(
      () => waits('pid <> $1 and query like $2', [rows[0].pid, `%create index concurrently%${schema}%`]),
      'the migration to wait behind it',
    )
    await holder.query('rollback')
    holder.release()
    await working
    expect(await orphaned).toMatchObject({ code: '40P01' }) // it has left an INVALID index
    await orphan.end()
    await expectComplete()
  })
})

describe('when it cannot go on', () => {
  it('waits its turn many times over, tells so, and then goes on', async () => {
    const holder = await pool.connect()
    await holder.query('begin')
    await holder.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [`dibs.migrate:${schema}`])
    const waits: string[] = []
    const stop = onEvent('dibs:migration.waiting', ({ instance, subject }) => {
      if (instance === database.origin.instance) waits.push(subject)
    })
    const working = migrate(database, all)
    await until(() => waits.length > 10, 'more turns than looks in vain are allowed')
    expect(waits[0]).toBe(`another process that migrates schema "${schema}"`)
    await holder.query('rollback')
    holder.release()
    await working
    stop()
    await expectComplete()
  })

  it('waits for a locked table in short turns, then is BusyError', async () => {
    await migrate(database, all.slice(0, 2))
    const holder = await pool.connect()
    await holder.query(`begin; lock table ${quoteIdentifier(schema)}.item in access share mode`)
    const error = await migrate(database, all, { waitMs: 100 }).catch((reason) => reason)
    expect(error).toBeInstanceOf(BusyError)
    expect(error.message).toContain('for what migration 3 (item_price) changes')
    expect(error.cause).toMatchObject({ code: '55P03' })
    await holder.query('rollback')
    holder.release()
    await migrate(database, all)
    await expectComplete()
  })

  it('tells a user without rights what to grant', async () => {
    const role = freshName('poor')
    const poorPool = new pg.Pool({ connectionString: await createRole(role) })
    const limited = new Database(poorPool, { schema, prepared: false })
    const error = await migrate(limited, all).catch((reason) => reason)
    expect(error).toBeInstanceOf(SetupError)
    expect(error.message).toContain('or as a user with CREATE on the database')

    await migrate(database, all) // by the owner
    await expect(checkMigrations(limited, all)).rejects.toThrow('As its owner: grant usage on schema')
    await pool.query(
      `grant usage on schema ${quoteIdentifier(schema)} to ${role}; grant select on ${quoteIdentifier(schema)}.migration to ${role}`,
    )
    await migrate(limited, all) // nothing to do, so no right is needed
    await poorPool.end()
    await pool.query(`drop owned by ${role}; drop role ${role}`)
  })
})

describe('a connection that breaks', () => {
  it('while a file is applied is made good by another look', async () => {
    const killing = until(async () => {
      const { rows } = await pool.query(
        'select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and query like $1',
        [`%insert into "${schema}".item%`],
      )
      return rows.length > 0
    }, 'the first file to run')
    const slow = readMigrations([
      {
        file: '0001_item.sql',
        text: '-- compatible_from: 1\ncreate table {schema}.item (id int); insert into {schema}.item select 1 from pg_catalog.pg_sleep(1.5);\n',
      },
    ])
    await migrate(database, slow)
    await killing
    const { rows } = await pool.query(`select count(*)::int as n from ${quoteIdentifier(schema)}.item`)
    expect(rows).toEqual([{ n: 1 }])
  })
})

it('tells a foreign table of the same name from its own', async () => {
  await pool.query(
    `create schema ${quoteIdentifier(schema)}; create table ${quoteIdentifier(schema)}.migration (id int)`,
  )
  await expect(migrate(database, all)).rejects.toThrow('is not the register of Dibs')
})

describe('checkMigrations', () => {
  it('accepts what fits and changes nothing', async () => {
    const error = await checkMigrations(database, all).catch((reason) => reason)
    expect(error).toBeInstanceOf(SchemaVersionError)
    expect(error.message).toContain(
      "is not there yet and this release needs version 4. Run `dibs migrate`, or open once with migrate: 'auto'",
    )
    await migrate(database, all.slice(0, 2))
    await expect(checkMigrations(database, all)).rejects.toThrow(
      'is at version 2 and this release needs version 4',
    )
    expect(await recorded()).toHaveLength(2)
    await migrate(database, all)
    await checkMigrations(database, all)
  })
})
