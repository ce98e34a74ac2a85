import { fileURLToPath } from 'node:url'

/** Where this code is: `src/testing`, or the folder of the bundles. A frame of a stack in it is not the user's. */
export const ownFolder = fileURLToPath(new URL('.', import.meta.url))
