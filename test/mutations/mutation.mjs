import { readdirSync, readFileSync } from 'node:fs'

/**
 * One guard to be removed, and the tests that must notice.
 *
 * @typedef {{ name: string, file: string, from: string | RegExp, to: string, tests: string[] }} Mutation
 */

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')

/** The first place with this text after the head of that SQL function: several share their lines. */
export const inFunction = (name, text) => {
  const head = `create function {schema}.${name}(`
  const place = new RegExp(`(?<=${escaped(head)}(?:(?!create function)[\\s\\S])*)${escaped(text)}`)
  return Object.assign(place, { head })
}

const sqlFiles = readdirSync(new URL('../../sql', import.meta.url))
  .filter((file) => file.endsWith('.sql'))
  .map((file) => ({
    file: `sql/${file}`,
    text: readFileSync(new URL(`../../sql/${file}`, import.meta.url), 'utf8'),
  }))

/** The SQL file that holds this, of those about one subject: `about('quota', …)`. */
export function about(subject, from) {
  const files = sqlFiles.filter(
    // To look behind takes long, and the head of the function says it as well.
    ({ file, text }) =>
      file.search(subject) >= 0 &&
      (from instanceof RegExp && !from.head ? from.test(text) : text.includes(from.head ?? from)),
  )
  if (files.length !== 1) throw new Error(`${files.length} files about "${subject}" in sql contain ${from}`)
  return files[0].file
}

export const claims = (file) => `src/claims/${file}`
