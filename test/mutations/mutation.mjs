import { readdirSync, readFileSync } from 'node:fs'

/**
 * One guard to be removed, and the tests that must notice.
 *
 * @typedef {{ name: string, file: string, from: string | RegExp | ReturnType<typeof inFunction>, to: string, tests: string[] }} Mutation
 */

/** The first place with this text after the head of that SQL function: several share their lines. For `String.replace`. */
export const inFunction = (name, text) => {
  const head = `create function {schema}.${name}(`
  return {
    head,
    [Symbol.replace](source, to) {
      const start = source.indexOf(head)
      const next = source.indexOf('create function', start + 1)
      const place = start < 0 ? -1 : source.indexOf(text, start + head.length)
      if (place < 0 || (next >= 0 && place >= next)) return source
      return source.slice(0, place) + to() + source.slice(place + text.length)
    },
    toString: () => `${text} in ${name}`,
  }
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
    ({ file, text }) =>
      file.search(subject) >= 0 &&
      (from instanceof RegExp ? from.test(text) : text.includes(from.head ?? from)),
  )
  if (files.length !== 1) throw new Error(`${files.length} files about "${subject}" in sql contain ${from}`)
  return files[0].file
}

export const claims = (file) => `src/claims/${file}`
