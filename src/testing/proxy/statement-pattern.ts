import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'

/** `commit` is a part of the SQL, `/^commit$/` a regular expression. Case does not matter. */
export function statementPattern(statement: unknown = ''): RegExp {
  if (typeof statement !== 'string')
    throw new InvalidInputError('statement', `must be a string, not ${nameGiven(statement)}`)
  const source = /^\/(.*)\/$/s.exec(statement)?.[1]
  try {
    return new RegExp(source ?? statement.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&'), 'is')
  } catch (error) {
    throw new InvalidInputError(
      'statement',
      `must be a valid regular expression: ${(error as Error).message}`,
    )
  }
}
