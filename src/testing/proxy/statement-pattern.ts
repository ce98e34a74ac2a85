import { InvalidInputError } from '../../errors.js'

/** `commit`: a part of the text; `/^commit$/`: a regular expression. Upper and lower case alike. */
export function statementPattern(statement = ''): RegExp {
  const source = /^\/(.*)\/$/s.exec(statement)?.[1]
  try {
    return new RegExp(source ?? statement.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&'), 'is')
  } catch (error) {
    throw new InvalidInputError('statement', `is no regular expression: ${(error as Error).message}`)
  }
}
