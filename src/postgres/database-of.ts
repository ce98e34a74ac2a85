import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import type { Database } from './database.js'

const databases = new WeakMap<object, Database>()

/** Remembers the database of a `Dibs` instance, for parts of Dibs that get only the instance. */
export function registerInstance(instance: object, database: Database): void {
  databases.set(instance, database)
}

export function databaseOf(instance: object): Database {
  const database = typeof instance === 'object' && instance !== null ? databases.get(instance) : undefined
  if (!database)
    throw new InvalidInputError('dibs', `must be what \`await Dibs.open()\` gave, not ${nameGiven(instance)}`)
  return database
}
