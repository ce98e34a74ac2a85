// Reads types from TypeScript source: resolves names, also across files, and says what a type consists of.
// A type is `{ node, file }`: its node, and the file that declares or imports the names in that node.
import { dirname, join } from 'node:path'
import { parseAst } from 'rolldown/parseAst'

/** Types that have the fields of their argument. */
const WRAPPERS = ['Readonly', 'Partial', 'Required', 'NonNullable', 'NoInfer', 'Awaited']

/** Types that have some fields of their argument. */
export const PICKS = ['Pick', 'Omit']

const NO_VALUE = ['TSUndefinedKeyword', 'TSNullKeyword', 'TSVoidKeyword']

/** The name in `X`, `X<Y>`, `extends X` or `typeof x`. */
export const nameOf = (node) => {
  const name = node?.typeName ?? node?.expression ?? node?.exprName ?? node
  return name?.type === 'Identifier' ? name.name : undefined
}
export const keyOf = ({ key, computed }) => (computed ? undefined : (key?.name ?? key?.value))
export const isNamed = ({ node }, name) => node.type === 'TSTypeReference' && nameOf(node) === name

/**
 * Reads a parameter: `x`, `x?`, `x = 1`, `...x` or `{ a, b }`. A type parameter stands for what it extends.
 */
export function readParameter(param, file, typeParameters = []) {
  const inner = param.type === 'TSParameterProperty' ? param.parameter : param
  const target = inner.type === 'AssignmentPattern' ? inner.left : inner
  const written = target.typeAnnotation?.typeAnnotation ?? inner.right
  const generic = typeParameters.find(({ name }) => name.name === nameOf(written))
  return {
    name: target.name ?? target.argument?.name ?? 'options',
    isOptional: inner !== target || target.optional === true || target.type === 'RestElement',
    type: readableType(generic?.constraint ?? written, file),
  }
}

/** The type of a field, a getter, a constant or a parameter property; or the value, where no type is written. */
export function typeOfField(member, file) {
  if (member.type === 'TSParameterProperty') return readParameter(member, file).type
  const getter = member.kind === 'get' ? (member.returnType ?? member.value?.returnType) : undefined
  const written = getter ?? member.typeAnnotation ?? member.id?.typeAnnotation
  return readableType(written?.typeAnnotation ?? withoutCast(member.value ?? member.init), file)
}

/** A type, or a value that shows its type. */
function readableType(node, file) {
  const kinds = /^(TS\w+|Literal|ObjectExpression|ArrowFunctionExpression|FunctionExpression)$/
  return kinds.test(node?.type) ? { node, file } : undefined
}

function withoutCast(value) {
  if (value?.type === 'TSSatisfiesExpression') return withoutCast(value.expression)
  if (value?.type !== 'TSAsExpression') return value
  return nameOf(value.typeAnnotation) === 'const' ? withoutCast(value.expression) : value.typeAnnotation
}

/** Members that a user can see, with the parameter properties of the constructor, without implementations of overloads. */
export function membersOf(node) {
  const members = node.members ?? node.properties ?? node.body?.body
  if (!Array.isArray(members)) return []
  const visible = members
    .flatMap((member) => {
      const parameters = member.kind === 'constructor' ? member.value.params : []
      return [member, ...parameters.filter(({ type }) => type === 'TSParameterProperty')]
    })
    .filter(({ key, accessibility }) => key?.type !== 'PrivateIdentifier' && accessibility !== 'private')
  return visible.filter(
    (member) =>
      !member.value?.body || !visible.some((other) => isOverload(other) && keyOf(other) === keyOf(member)),
  )
}

/** The types that an interface or a class extends. */
export const basesOf = ({ extends: heritage, superClass, superTypeArguments }) =>
  superClass
    ? [{ type: 'TSInterfaceHeritage', expression: superClass, typeArguments: superTypeArguments }]
    : (heritage ?? [])

const isOverload = ({ value }) => value?.type === 'TSEmptyBodyFunctionExpression'

const isFieldMember = ({ type, kind }) =>
  kind === 'get' ||
  ['TSPropertySignature', 'PropertyDefinition', 'TSAbstractPropertyDefinition', 'Property'].includes(type)

/** The name of a field, a getter or a parameter property; undefined for other members. */
export function fieldNameOf(member) {
  if (member.type === 'TSParameterProperty') return readParameter(member).name
  return isFieldMember(member) ? keyOf(member) : undefined
}

export class Types {
  #read
  #modules = new Map()

  /** @param {(file: string) => string} read */
  constructor(read) {
    this.#read = read
  }

  lineOf(file, node) {
    return this.#module(file).source.slice(0, node.start).split('\n').length
  }

  sourceOf(file) {
    return this.#module(file).source
  }

  /** The exports of a file: each name with its declarations. */
  exportsOf(file) {
    const { exported: found } = this.#module(file)
    if (found.size > 0) return found
    for (const statement of this.#module(file).body) {
      const from = targetOf(statement, file)
      if (statement.type === 'ExportAllDeclaration' && from)
        for (const [name, declared] of this.exportsOf(from)) found.set(name, declared)
      if (statement.type !== 'ExportNamedDeclaration') continue
      for (const name of namesIn(statement.declaration)) found.set(name, this.resolve(name, file))
      for (const { local, exported } of statement.specifiers ?? []) {
        const declared = statement.source
          ? from && this.exportsOf(from).get(local.name)
          : this.resolve(local.name, file)
        if (declared) found.set(exported.name, declared)
      }
    }
    return found
  }

  /** The declarations behind a name; undefined for names of packages, of the language and of type parameters. */
  resolve(name, file) {
    const { declared, imported } = this.#module(file)
    if (declared.has(name)) return { name, file, nodes: declared.get(name) }
    const source = imported.get(name)
    return source && this.exportsOf(source.file).get(source.name)
  }

  /** The declarations that a type names: by `X`, `typeof x` or `import('./x.js').X`. */
  resolveType({ node, file }) {
    if (node.type !== 'TSImportType') return this.resolve(nameOf(node), file)
    const from = targetOf(node, file)
    return from && node.qualifier && this.exportsOf(from).get(node.qualifier.name)
  }

  #module(file) {
    if (!this.#modules.has(file)) this.#modules.set(file, this.#parse(file))
    return this.#modules.get(file)
  }

  #parse(file) {
    const source = this.#read(file)
    const { body } = parseAst(source, { lang: 'ts', sourceType: 'module' })
    const declared = new Map()
    const imported = new Map()
    for (const statement of body) {
      const from = targetOf(statement, file)
      if (statement.type === 'ImportDeclaration' && from)
        for (const { local, imported: original } of statement.specifiers)
          if (original) imported.set(local.name, { file: from, name: original.name })
      const declaration = statement.declaration ?? statement
      for (const name of namesIn(declaration)) {
        const node = declaration.declarations?.find(({ id }) => id.name === name) ?? declaration
        declared.set(name, [...(declared.get(name) ?? []), node])
      }
    }
    return { source, body, declared, imported, exported: new Map() }
  }

  // ── what a type consists of ────────────────────────────────────────────────

  /** The type behind aliases and wrappers such as `Readonly<X>`. */
  expand(type) {
    const { node, file } = type
    const inner = (one) => this.expand({ node: one, file })
    if (node.type === 'TSTypeOperator' && node.operator === 'readonly') return inner(node.typeAnnotation)
    if (node.type === 'TSIndexedAccessType') return this.#indexed(type) ?? type
    const [argument] = node.typeArguments?.params ?? []
    if (argument && WRAPPERS.includes(nameOf(node))) return inner(argument)
    if (!['TSTypeReference', 'TSInterfaceHeritage', 'TSImportType'].includes(node.type)) return type
    const declared = this.resolveType(type)
    const types = ['TSTypeAliasDeclaration', 'TSInterfaceDeclaration', 'ClassDeclaration']
    const found = declared?.nodes.find(({ type: kind }) => types.includes(kind))
    if (!found) return type
    const isAlias = found.type === 'TSTypeAliasDeclaration'
    const bound = bindLiterals(found, node.typeArguments?.params ?? [])
    const target = { node: isAlias ? bound.typeAnnotation : bound, file: declared.file }
    return isAlias ? this.expand(target) : target
  }

  /** `X['field']`, and `(typeof list)[number]` of a constant list. */
  #indexed({ node, file }) {
    const of = this.expand({ node: node.objectType, file })
    if (node.indexType.type === 'TSLiteralType') {
      const field = this.fieldsOf(of).get(node.indexType.literal.value)
      return field && this.expand(field)
    }
    const list = of.node.type === 'TSTypeQuery' ? this.resolveType(of)?.nodes[0] : undefined
    const elements = withoutCast(list?.init)?.elements
    if (!elements) return undefined
    const types = elements.map((literal) => ({ type: 'TSLiteralType', literal, start: literal.start }))
    return { node: { type: 'TSUnionType', types, start: node.start }, file: of.file }
  }

  /** The members of a union, or the type itself. */
  partsOf(type) {
    const { node, file } = this.expand(type)
    if (node.type !== 'TSUnionType') return [{ node, file }]
    return node.types.flatMap((one) => this.partsOf({ node: one, file }))
  }

  /** The members of a union other than null and undefined. */
  valuesOf(type) {
    return type ? this.partsOf(type).filter(({ node }) => !NO_VALUE.includes(node.type)) : []
  }

  /** The fields of an object type and of its bases, with their types. */
  fieldsOf(type) {
    const typed = [...this.fieldMembersOf(type)].map(([name, { node, file }]) => [
      name,
      typeOfField(node, file),
    ])
    return new Map(typed.filter(([, its]) => its))
  }

  /** The fields of an object type and of its bases, as they are declared. */
  fieldMembersOf(type) {
    const { node, file } = this.expand(type)
    const all = (nodes) => nodes.flatMap((one) => [...this.fieldMembersOf({ node: one, file })])
    if (node.type === 'TSIntersectionType') return new Map(all(node.types))
    const [argument, keys] = node.typeArguments?.params ?? []
    if (keys && PICKS.includes(nameOf(node))) {
      const named = this.literalsOf({ node: keys, file }) ?? []
      const isPick = nameOf(node) === 'Pick'
      return new Map(all([argument]).filter(([name]) => named.includes(name) === isPick))
    }
    const own = membersOf(node).flatMap((member) => {
      const name = fieldNameOf(member)
      return name === undefined ? [] : [[name, { node: member, file }]]
    })
    return new Map([...all(basesOf(node)), ...own])
  }

  /** The strings of a union that has nothing else but null and undefined. */
  literalsOf(type) {
    const parts = this.valuesOf(type)
    const literals = parts.map(({ node }) => node.literal?.value)
    return literals.length > 0 && literals.every((one) => typeof one === 'string') ? literals : undefined
  }

  /** The value of a type that is `true` or `false`. */
  booleanOf(type) {
    const value = type && this.expand(type).node.literal?.value
    return typeof value === 'boolean' ? value : undefined
  }

  /** All names by which a type is known: its own, and those of the aliases and members behind it. */
  namesOf(type) {
    if (!type) return []
    const { node, file } = type
    const inner = (nodes) => nodes.flatMap((one) => this.namesOf({ node: one, file }))
    if (node.types) return inner(node.types)
    if (node.type !== 'TSTypeReference') return []
    const declared = this.resolveType({ node, file })
    const names = WRAPPERS.includes(nameOf(node)) ? inner(node.typeArguments?.params ?? []) : []
    const [alias] = declared?.nodes.filter(({ type }) => type === 'TSTypeAliasDeclaration') ?? []
    if (alias) names.push(...this.namesOf({ node: alias.typeAnnotation, file: declared.file }))
    return [declared?.name ?? nameOf(node), ...names]
  }

  /** The call signatures of a type that is a function and nothing else. */
  signaturesOf(type) {
    const found = this.valuesOf(type).map(({ node, file }) => ({
      nodes: node.params ? [node] : membersOf(node).filter(({ type: kind }) => /CallSignature/.test(kind)),
      file,
    }))
    if (found.some(({ nodes }) => nodes.length === 0)) return []
    return found.flatMap(({ nodes, file }) => nodes.map((node) => ({ node, file })))
  }

  /** `X` of `Promise<X>`; else the type itself. */
  awaited(type) {
    const { node, file } = this.expand(type)
    if (!['Promise', 'PromiseLike'].includes(nameOf(node))) return { node, file }
    const [result] = node.typeArguments?.params ?? []
    return result ? this.awaited({ node: result, file }) : { node, file }
  }
}

/** A declaration with its type parameters replaced by the literals among the arguments: `X[F]` by `X['field']`. */
function bindLiterals(declaration, typeArguments) {
  const parameters = declaration.typeParameters?.params ?? []
  const literals = new Map(
    parameters.flatMap(({ name }, n) =>
      typeArguments[n]?.type === 'TSLiteralType' ? [[name.name, typeArguments[n]]] : [],
    ),
  )
  const bind = (node) => {
    if (Array.isArray(node)) return node.map(bind)
    if (typeof node !== 'object' || node === null) return node
    if (node.type === 'TSTypeReference' && literals.has(nameOf(node))) return literals.get(nameOf(node))
    return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, bind(value)]))
  }
  return literals.size === 0 ? declaration : bind(declaration)
}

/** The file that an import, an export or an import type names by a relative path. */
function targetOf({ source }, file) {
  const path = source?.value
  return path?.startsWith('.') ? join(dirname(file), path.replace(/\.js$/, '.ts')) : undefined
}

function namesIn(declaration) {
  const ids = declaration?.declarations?.map(({ id }) => id) ?? [declaration?.id]
  return ids.flatMap((id) => id?.name ?? [])
}
