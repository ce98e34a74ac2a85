/**
 * One guard to be removed, and the tests that must notice.
 *
 * @typedef {{ name: string, file: string, from: string | RegExp, to: string, tests: string[] }} Mutation
 */

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')

/** The first place with this text after the head of that SQL function: several share their lines. */
export const inFunction = (name, text) =>
  new RegExp(`(?<=create function \\{schema\\}\\.${name}\\((?:(?!create function)[\\s\\S])*)${escaped(text)}`)

export const claims = (file) => `src/claims/${file}`
