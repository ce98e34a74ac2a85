import { InvalidInputError } from '../errors.js'
import type { Database } from './database.js'
import { nameGiven } from './name-given.js'

const databases = new WeakMap<object, Database>()

/** Which database stands behind an instance: for parts of ours that are given one, and tell of themselves in its name. */
export function bindInstance(instance: object, database: Database): void {
  databases.set(instance, database)
}

export function databaseOf(instance: object): Database {
  const database = typeof instance === 'object' && instance !== null ? databases.get(instance) : undefined
  if (!database)
    throw new InvalidInputError('dibs', `must be what \`await Dibs.open()\` gave, not ${nameGiven(instance)}`)
  return database
}
