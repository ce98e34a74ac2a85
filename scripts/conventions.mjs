// Holds the public API to its conventions (CONTRIBUTING.md, "The conventions of the public API").
import { readFileSync } from 'node:fs'
import { checkCall, checkField, checkPairs, checkParameter, checkUnion } from './conventions/rules.mjs'
import {
  basesOf,
  fieldNameOf,
  keyOf,
  membersOf,
  nameOf,
  PICKS,
  readParameter,
  Types,
  typeOfField,
} from './conventions/types.mjs'

/**
 * Every breach of a convention in what `entry` exports, and in all types that are reached from there.
 *
 * @param {string} entry the file whose exports are public
 * @param {(file: string) => string} read
 * @returns {string[]}
 */
export function findBreaches(entry, read = (file) => readFileSync(file, 'utf8')) {
  const types = new Types(read)
  const visitor = new Visitor(types)
  const exported = [...types.exportsOf(entry).values()]
  for (const declared of exported)
    if (declared.nodes.some(({ type }) => !TYPES.includes(type))) visitor.visitDeclaration(declared, 'ours')
  for (const declared of exported)
    if (!visitor.hasVisited(declared)) visitor.visitDeclaration(declared, 'unknown')
  return visitor.breaches
}

const TYPES = ['TSInterfaceDeclaration', 'TSTypeAliasDeclaration']

/**
 * Provider of a value: Dibs (`ours`) or the user (`theirs`). A function of ours is a call, and keeps the conventions of
 * calls. A function of theirs is a callback. The side of a type that no call mentions is unknown: its methods are calls,
 * and its fields that are functions may be callbacks.
 */
const OTHER_SIDE = { ours: 'theirs', theirs: 'ours', unknown: 'unknown' }

/** Visits everything that users can see, and keeps what breaks a rule. */
class Visitor {
  #types
  #found = new Map()
  #visited = new Set()

  constructor(types) {
    this.#types = types
  }

  get breaches() {
    return [...this.#found.values()]
  }

  hasVisited({ name, file }) {
    return Object.keys(OTHER_SIDE).some((side) => this.#visited.has(`${file} ${name} ${side}`))
  }

  #report(problems, { file, path }, node) {
    if (problems.length === 0) return
    const place = `${file.slice(file.indexOf('src/'))}:${this.#types.lineOf(file, node)}`
    for (const problem of problems) {
      // One type may be reached by several paths.
      const id = `${place} ${node.start} ${problem}`
      if (!this.#found.has(id)) this.#found.set(id, `${place}: ${path} ${problem}`)
    }
  }

  /** @param side of an interface or an alias; functions, constants and classes are always ours */
  visitDeclaration({ name, nodes, file }, side) {
    const id = `${file} ${name} ${side}`
    if (this.#visited.has(id)) return
    this.#visited.add(id)
    const at = { file, path: name, side }
    const functions = nodes.filter(({ type }) => ['TSDeclareFunction', 'FunctionDeclaration'].includes(type))
    const overloads = functions.filter(({ body }) => !body)
    this.#visitCalls(name, overloads.length > 0 ? overloads : functions, { ...at, side: 'ours' })
    for (const node of nodes) {
      if (node.typeAnnotation?.type === 'TSFunctionType') this.#visitCalls(name, [node.typeAnnotation], at)
      else if (node.type === 'TSTypeAliasDeclaration') this.#visitType(node.typeAnnotation, at)
      if (node.type === 'VariableDeclarator')
        this.#visitField(name, typeOfField(node, file), node, { ...at, side: 'ours' })
      if (node.type === 'TSInterfaceDeclaration') this.#visitMembers(node, at)
      if (node.type === 'ClassDeclaration') this.#visitMembers(node, { ...at, side: 'ours' })
      this.#report(checkPairs(name, node), at, node)
    }
  }

  /** @param node an interface, a class, a type literal or an object */
  #visitMembers(node, at) {
    for (const base of basesOf(node)) this.#visitType(base, at)
    const calls = new Map()
    for (const member of membersOf(node)) {
      const name = fieldNameOf(member)
      const within = { ...at, path: name === undefined ? at.path : `${at.path}.${name}` }
      if (name !== undefined) this.#visitField(name, typeOfField(member, at.file), member, within)
      else if (member.kind === 'constructor' && /Error$/.test(at.path)) this.#visitSignature(member.value, at)
      else if (member.kind === 'method' || member.type === 'TSCallSignatureDeclaration') {
        const called = keyOf(member)
        calls.set(called, [...(calls.get(called) ?? []), member.value ?? member])
      } else if (member.type === 'TSIndexSignature') this.#visitType(member.typeAnnotation.typeAnnotation, at)
    }
    for (const [name, signatures] of calls) {
      const within = name === undefined ? at : { ...at, path: `${at.path}.${name}`, isMember: true }
      this.#visitCalls(name ?? at.path, signatures, within)
    }
  }

  #visitField(name, type, member, { path, side, file }) {
    const at = { path, side, file: type?.file ?? file }
    const field = { name, path, type, isResult: side === 'ours' }
    this.#report(checkField(field, this.#types), at, type?.node ?? member)
    if (!type) return
    const signatures = side === 'ours' ? this.#types.signaturesOf(type) : []
    this.#checkCalls(name, signatures, { ...at, isMember: path.includes('.') })
    this.#visitType(type.node, at)
  }

  #checkCalls(name, signatures, { path, isMember }) {
    const calls = signatures.map(({ node, file }) => ({
      ...{ name, path: `${path}()`, isMember, node, file },
      params: node.params.map((param) => readParameter(param, file, node.typeParameters?.params)),
      returns: node.returnType && { node: node.returnType.typeAnnotation, file },
    }))
    for (const call of calls)
      this.#report(checkCall({ ...call, overloads: calls }, this.#types), call, call.node)
  }

  /** @param nodes the overloads of one function */
  #visitCalls(name, nodes, at) {
    const signatures = nodes.map((node) => ({ node, file: at.file }))
    if (at.side !== 'theirs') this.#checkCalls(name, signatures, at)
    for (const node of nodes) this.#visitSignature(node, at)
  }

  #visitSignature(node, { file, path, side }) {
    if (node.typeParameters) this.#visitType(node.typeParameters, { file, path, side: OTHER_SIDE[side] })
    for (const written of node.params) {
      const param = readParameter(written, file, node.typeParameters?.params)
      const at = { file, path: `${path}(${param.name})`, side: OTHER_SIDE[side] }
      if (!param.type) continue
      this.#report(checkParameter(param, this.#types), at, written)
      this.#visitType(param.type.node, at)
    }
    if (node.returnType) this.#visitType(node.returnType.typeAnnotation, { file, path: `${path}()`, side })
  }

  #visitType(node, at) {
    if (['TSFunctionType', 'ArrowFunctionExpression', 'FunctionExpression'].includes(node.type))
      this.#visitSignature(node, at)
    else if (node.type === 'TSTypeLiteral' || node.type === 'ObjectExpression') this.#visitMembers(node, at)
    else {
      if (node.type === 'TSUnionType') {
        const type = { node, file: at.file }
        this.#report(checkUnion(type, at.path, this.#types), at, node)
      }
      this.#visitParts(node, at)
    }
  }

  /** Follows names, and visits the types that a type is made of. */
  #visitParts(node, at) {
    if (node.operator === 'keyof') return
    const picked = PICKS.includes(nameOf(node)) ? this.#types.fieldsOf({ node, file: at.file }) : new Map()
    for (const [name, type] of picked)
      this.#visitField(name, type, type.node, { ...at, path: `${at.path}.${name}` })
    if (picked.size > 0) return
    const isName = /^(TSTypeReference|TSInterfaceHeritage|TSTypeQuery|TSImportType)$/.test(node.type)
    const declared = isName && this.#types.resolveType({ node, file: at.file })
    if (declared) this.visitDeclaration(declared, at.side)
    for (const value of Object.values(node).flat()) if (/^TS/.test(value?.type)) this.#visitType(value, at)
  }
}
