import { ownFolder } from '../own-folder.js'

/** The first line of the stack that is neither in Dibs nor in a library, with its path: `buy (/app/shop.ts:12:20)`. */
export function callSite(error: Error | undefined): string | undefined {
  return error?.stack
    ?.split('\n')
    .slice(1)
    .map((line) => line.replace(/^\s*at /, ''))
    .find(
      (line) =>
        !line.includes('node:') &&
        !line.includes('/node_modules/') &&
        !line.includes('<anonymous>') &&
        (!line.includes(ownFolder) || line.includes('.test.')),
    )
}
