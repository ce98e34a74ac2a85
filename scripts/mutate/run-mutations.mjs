import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { mutate } from './markers.mjs'

/**
 * Removes one guard at a time in a copy of the tree, builds it, and runs the tests that must notice.
 *
 * @param {string} copy the folder that is changed, and changed back
 * @param {{ mutation: import('./read-mutations.mjs').Mutation, place: import('./markers.mjs').Place }[]} chosen
 * @param {{
 *   build: () => string | undefined,
 *   test: (tests: string[]) => { verdict: Verdict, by?: string },
 *   report: (guard: string, verdict: Verdict, details: string) => void,
 * }} steps `build` returns why it does not compile
 * @typedef {'killed' | 'survived' | 'does not compile' | 'timed out'} Verdict
 * @returns {Record<Verdict, string[]>} the guards by verdict
 */
export function runMutations(copy, chosen, { build, test, report }) {
  const results = { killed: [], survived: [], 'does not compile': [], 'timed out': [] }
  for (const { mutation, place } of chosen) {
    const path = join(copy, place.file)
    const source = readFileSync(path, 'utf8')
    writeFileSync(path, mutate(source, place, mutation))
    try {
      const error = build()
      const { verdict, by } = error ? { verdict: 'does not compile', by: error } : test(mutation.tests)
      results[verdict].push(mutation.guard)
      report(mutation.guard, verdict, verdict === 'survived' ? mutation.what : (by ?? ''))
    } finally {
      writeFileSync(path, source)
    }
  }
  return results
}

/**
 * Errors of the compiler that say that a replacement is out of date: syntax and names. Types may be wrong, as they are
 * after many mutations.
 */
const BROKEN = /error TS(?:1\d{3}|2304|2305|2307|2339(?!.*on type 'never')|2448|2454|2551|2552|2663|18004):.*/

export const findBroken = (output) => output.match(BROKEN)?.[0]

/** Reads the verdict of a run from the output of Vitest's JSON reporter. */
export function judge({ stdout, status, error }) {
  if (status === 0) return { verdict: 'survived' }
  if (error) return { verdict: 'timed out' }
  const { testResults = [] } = readJson(stdout.slice(Math.max(0, stdout.indexOf('{'))))
  // No test has run that could notice.
  if (testResults.length === 0) return { verdict: 'survived' }
  const failed = testResults
    .flatMap(({ assertionResults }) => assertionResults)
    .find(({ status }) => status === 'failed')
  const message = testResults.find(({ status }) => status === 'failed')?.message ?? ''
  const details = failed?.failureMessages.join('\n') ?? message
  if (
    /syntax error at |unrecognized exception condition|SyntaxError|Transform failed|ReferenceError|has no field/.test(
      details,
    )
  )
    return { verdict: 'does not compile', by: details.split('\n')[0] }
  return { verdict: 'killed', by: failed?.fullName ?? (message.split('\n')[0] || 'the run itself') }
}

function readJson(text) {
  try {
    return JSON.parse(text)
  } catch {
    return {}
  }
}
