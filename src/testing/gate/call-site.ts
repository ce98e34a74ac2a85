import { fileURLToPath } from 'node:url'

const here = fileURLToPath(new URL('..', import.meta.url))

/** The first line of the stack that is neither ours nor a library's: `shop.ts:12:20`, with its path. */
export function callSite(): string | undefined {
  const { stack = '' } = new Error()
  return stack
    .split('\n')
    .slice(1)
    .map((line) => line.replace(/^\s*at /, ''))
    .find(
      (line) =>
        !line.includes('node:') &&
        !line.includes('/node_modules/') &&
        !line.includes('<anonymous>') &&
        (!line.includes(here) || line.includes('.test.')),
    )
}
