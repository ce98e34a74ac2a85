import type { Crash } from './crash.js'

/** In the order of the page. An id is the name of its file. */
export const crashes: Readonly<Record<string, () => Promise<{ readonly crash: Crash }>>> = {
  'pending-for-ever': () => import('./pending-for-ever.js'),
  'counter-first': () => import('./counter-first.js'),
  'rollback-of-the-done': () => import('./rollback-of-the-done.js'),
  'step-log-in-transaction': () => import('./step-log-in-transaction.js'),
  'three-commits': () => import('./three-commits.js'),
  'killer-message': () => import('./killer-message.js'),
  'heartbeat-behind-transaction': () => import('./heartbeat-behind-transaction.js'),
}
