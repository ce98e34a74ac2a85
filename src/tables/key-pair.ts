import type { Column } from '../postgres/rows/table.js'

/** A column of a parent's key, and that of a child which says the same. */
export type KeyPair = readonly [own: Column, foreign: Column]

/** That a child's value (`its`) is the parent's (`key`), such that an index of the child finds it. */
export function childHas([own, foreign]: KeyPair, its: string, key: string): string {
  if (areIntegers(own, foreign)) return `${its} ${INTEGERS} ${key}`
  if (isInteger(foreign)) return `${its}::${own.cast} ${own.equals} ${key}`
  const isIts = `${its} ${foreign.equals} ${key}::${foreign.cast}`
  return own.cast === foreign.cast ? isIts : both(isIts, `${key} ${own.equals} ${its}::${own.cast}`)
}

/** The same, such that an index of the parent finds it. */
export function parentHas([own, foreign]: KeyPair, key: string, its: string): string {
  if (areIntegers(own, foreign)) return `${key} ${INTEGERS} ${its}`
  const isKey = `${key} ${own.equals} ${its}::${own.cast}`
  return isInteger(foreign) || own.cast === foreign.cast
    ? isKey
    : both(isKey, `${its} ${foreign.equals} ${key}::${foreign.cast}`)
}

/**
 * Of two values of different types, each cast to that of the other: one cast alone may lose what tells two keys apart, as that of a time to its day does. The first is what an index is for, and
 * where it is false the second is not tried, since its cast may fail.
 */
const both = (first: string, second: string): string =>
  `${first} and case when ${first} then ${second} else false end`

/** Whole numbers of any two sizes are compared as they are, by an index too: to cast one to the size of the other may fail. */
const INTEGERS = 'operator(pg_catalog.=)'
const isInteger = ({ base }: Column): boolean => ['int2', 'int4', 'int8'].includes(`${base}`)
const areIntegers = (one: Column, other: Column): boolean => isInteger(one) && isInteger(other)
