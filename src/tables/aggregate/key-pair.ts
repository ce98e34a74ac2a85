import type { Column } from '../catalog/table.js'

/** A column of the parent's key, and the child's column that refers to it. */
export type KeyPair = readonly [own: Column, foreign: Column]

/** SQL: the child refers to the parent. An index of the child can serve this form. */
export function matchByChildIndex([own, foreign]: KeyPair, childValue: string, key: string): string {
  if (areIntegers(own, foreign)) return `${childValue} ${INTEGERS} ${key}`
  if (isInteger(foreign)) return `${childValue}::${own.cast} ${own.equals} ${key}`
  const ofChild = `${childValue} ${foreign.equals} ${key}::${foreign.cast}`
  return own.cast === foreign.cast
    ? ofChild
    : bothMatch(ofChild, `${key} ${own.equals} ${childValue}::${own.cast}`)
}

/** SQL: the child refers to the parent. An index of the parent can serve this form. */
export function matchByParentIndex([own, foreign]: KeyPair, key: string, childValue: string): string {
  if (areIntegers(own, foreign)) return `${key} ${INTEGERS} ${childValue}`
  const ofParent = `${key} ${own.equals} ${childValue}::${own.cast}`
  return isInteger(foreign) || own.cast === foreign.cast
    ? ofParent
    : bothMatch(ofParent, `${childValue} ${foreign.equals} ${key}::${foreign.cast}`)
}

/**
 * Compares two values of different types, each cast to the type of the other. One cast alone may lose the difference between
 * two keys, as from a time to a day. An index serves the first comparison. Where it is false, the second is not tried,
 * because its cast may fail.
 */
const bothMatch = (first: string, second: string): string =>
  `${first} and case when ${first} then ${second} else false end`

/** Integers of different sizes are compared without a cast, which an index also supports. A cast to the smaller size may fail. */
const INTEGERS = 'operator(pg_catalog.=)'
const isInteger = ({ base }: Column): boolean => ['int2', 'int4', 'int8'].includes(`${base}`)
const areIntegers = (one: Column, other: Column): boolean => isInteger(one) && isInteger(other)
