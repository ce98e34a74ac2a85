import { childOf, lastPart, listOf, type Node, nameParts } from '../statements/parse-tree.js'
import { advisoryLock } from './advisory-locks.js'
import type { FootprintBuilder } from './footprint-builder.js'
import { constantOf, type Values } from './key-values.js'
import { combinesRows, roundsSums } from './row-order.js'

/** Adds what a call of a function reads, locks and writes. */
export function addCall(builder: FootprintBuilder, call: Node): void {
  const { schemaInfo, values } = builder
  const parts = nameParts(call.funcname)
  const name = parts.at(-1) ?? ''
  const fullName = parts.join('.')
  const isBuiltIn = schemaInfo.isBuiltIn(fullName)
  const parameters = listOf(call.args).map((argument) => constantOf(argument, values))
  const lock = isBuiltIn ? advisoryLock(name, parameters) : undefined
  if (lock) return void builder.add(lock)
  if (name === 'nextval' && isBuiltIn) {
    const sequence = sequenceOf(listOf(call.args)[0], values)
    if (sequence) builder.add({ sequences: new Set([sequence]) })
    else builder.addUnbounded('nextval of an unknown sequence')
    return
  }
  if (combinesRows(call) || roundsSums(call, [...builder.columns.tables.values()]))
    builder.combinesRows = true
  const why = schemaInfo.whyUnpredictable(fullName)
  if (why) builder.addUnbounded(why)
}

/** The name of a sequence in an argument, in lower case unless quoted, as PostgreSQL reads it. */
function sequenceOf(argument: unknown, values: Values): string | undefined {
  const cast = childOf(argument, 'TypeCast')
  const isRegclass = lastPart(childOf(cast, 'typeName')?.names) === 'regclass'
  const text = constantOf(isRegclass ? cast?.arg : argument, values) ?? ''
  const [, quoted, plain] = /^(?:(?:"[^"]+"|[a-z_][\w$]*)\.)?(?:"([^"]+)"|([a-z_][\w$]*))$/i.exec(text) ?? []
  return quoted ?? plain?.toLowerCase()
}
