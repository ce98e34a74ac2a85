// Finds `Promise.race` and `Promise.any` in a source file.

/** The only file in src/ that may use them. */
export const RACES = 'src/postgres/with-timeout.ts'

const forms = [
  /\bPromise\s*(?:\?\.|\.|\[\s*['"`])\s*(?<method>race|any)\b/g,
  /\{[^{}]*\b(?<method>race|any)\b[^{}]*\}\s*=\s*Promise\b/g,
]

/** @returns {string[]} one problem for each place, with its line and what to use instead */
export function findRaces(file, source) {
  if (file === RACES) return []
  const blank = (text) => text.replace(/[^\n]/g, ' ')
  const code = source.replace(/\/\*[\s\S]*?\*\//g, blank).replace(/^\s*\/\/.*$|\s\/\/ .*$/gm, blank)
  return forms.flatMap((form) =>
    [...code.matchAll(form)].map(({ index, groups: { method } }) => {
      const line = code.slice(0, index).split('\n').length
      return `${file}:${line} uses Promise.${method}, which keeps every result in memory if one of its promises lives on. Use withTimeout, unlessAborted or firstFulfilled of ${RACES}.`
    }),
  )
}
