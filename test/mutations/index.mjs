// One guard removed at a time; the named tests must notice. `npm run mutate` runs them all.
import { groundMutations } from './ground.mjs'
import { kvMutations } from './kv.mjs'
import { onceMutations } from './once.mjs'
import { quotaMutations } from './quota.mjs'

export const mutations = [...groundMutations, ...kvMutations, ...onceMutations, ...quotaMutations]
