// Checks the imports in src/: their direction between folders, and cycles between files. Type imports count as well.
import { readFileSync } from 'node:fs'
import { dirname, join, relative, sep } from 'node:path'

/**
 * Allowed imports of each part, besides itself. Arrows go down only; the composition root and the face see everything
 * below the servers, and nothing imports `server`, `cli` or `web`.
 */
const stack = ['ops', 'processes', 'commands', 'jobs', 'claims']
const ground = ['locks', 'leases', 'tables', 'postgres', 'options', 'errors']

const below = (part) => [...stack.slice(stack.indexOf(part) + 1), ...ground]

export const allowed = {
  errors: [],
  options: ['errors'],
  postgres: ['options', 'errors'],
  leases: ['postgres', 'options', 'errors'],
  locks: ['leases', 'postgres', 'options', 'errors'],
  tables: ['postgres', 'options', 'errors'],
  ...Object.fromEntries(stack.map((part) => [part, below(part)])),
  'single-flight': ground,
  ops: ['single-flight', ...below('ops')],
  testing: ['postgres', 'options', 'errors'],
  redis: ['claims', ...ground],
  http: ['dibs', ...stack, ...ground],
  dibs: ['single-flight', ...stack, ...ground],
  index: ['dibs', 'single-flight', ...stack, ...ground],
  server: ['http', 'index', 'dibs', ...stack, ...ground],
  cli: ['server', 'http', 'index', 'dibs', 'testing', ...stack, ...ground],
}

/** The files that a module names: `import … from`, `export … from`, `import()`; our own package by name too. */
export function importsOf(source) {
  const text = source.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$|\s\/\/ .*$/gm, '')
  const name = String.raw`['"](\.[^'"]+|dibs(?:\/[^'"]*)?)['"]`
  const forms = [
    `^(?:import|export)\\b[^'";]*?\\bfrom\\s*${name}`,
    `\\bimport\\(\\s*${name}`,
    `^import\\s*${name}`,
  ]
  return forms.flatMap((form) => [...text.matchAll(new RegExp(form, 'gm'))].map(([, target]) => target))
}

/** @param {Map<string, string[]>} graph file, relative to src, to the files it imports */
export function checkArrows(graph) {
  const partOf = (file) => file.split('/')[0].replace(/\.ts$/, '')
  const problems = []
  for (const [file, targets] of graph) {
    const from = partOf(file)
    if (!(from in allowed))
      problems.push(`${file}: "${from}" has no place among the arrows (scripts/imports.mjs)`)
    for (const target of targets) {
      const to = partOf(target)
      if (to !== from && !allowed[from]?.includes(to))
        problems.push(`${file} imports ${target}: ${from} must not know ${to}`)
    }
  }
  return problems
}

/** @param {Map<string, string[]>} graph */
export function findCircles(graph) {
  const circles = []
  const state = new Map()
  const path = []
  const visit = (file) => {
    if (state.get(file) === 'done') return
    if (state.get(file) === 'open') {
      circles.push(`circle: ${[...path.slice(path.indexOf(file)), file].join(' → ')}`)
      return
    }
    state.set(file, 'open')
    path.push(file)
    for (const target of graph.get(file) ?? []) visit(target)
    path.pop()
    state.set(file, 'done')
  }
  for (const file of graph.keys()) visit(file)
  return circles
}

/** @param {string} root @param {string[]} files absolute paths of modules */
export function readGraph(root, files) {
  const name = (path) => relative(root, path).split(sep).join('/')
  return new Map(
    files.map((file) => {
      const targets = importsOf(readFileSync(file, 'utf8'))
      const resolve = (target) =>
        target.startsWith('.') ? name(join(dirname(file), target.replace(/\.js$/, '.ts'))) : 'index.ts'
      return [name(file), targets.map(resolve)]
    }),
  )
}
