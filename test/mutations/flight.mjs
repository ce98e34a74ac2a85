/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'flight.lead-recheck',
    from: "v_state in ('ended', 'failed') or v_state <> 'absent'",
    to: 'false',
    what: 'A new leader loads again what was just published.',
    tests: ['single-flight.explore'],
  },
  {
    guard: 'flight.publish-fence',
    from: "and l.fence = p_fence and l.expires_at > '-infinity' ",
    to: '',
    what: 'A leader that lost its lead publishes.',
    tests: ['flight-loss'],
  },
  {
    guard: 'flight.floor',
    from: 'f.fence > f.forgotten_fence and f.fresh_until',
    to: 'f.fresh_until',
    what: 'A forgotten value is served.',
    tests: ['single-flight'],
  },
  {
    guard: 'flight.after',
    from: 'greatest(v_seen.fence, v_seen.failed_fence, v_seen.forgotten_fence, 0) + ',
    to: '',
    what: 'A waiting caller gets a value from before its call.',
    tests: ['single-flight'],
  },
  {
    guard: 'flight.maintenance-held',
    from: "l.expires_at > '-infinity'",
    to: 'false',
    what: 'Maintenance removes the row of a running load.',
    tests: ['single-flight'],
  },
  {
    guard: 'flight.max-loads',
    from: /MAX_\w+/,
    to: '1_000_000',
    what: 'A failed load is repeated without end.',
    tests: ['flight-loss'],
  },
  {
    guard: 'flight.lost-wait',
    what: 'A caller whose load lost the lead waits without a limit.',
    tests: ['flight-loss'],
  },
  {
    guard: 'flight.notify',
    what: 'Waiting callers are not woken when a load ends.',
    tests: ['single-flight'],
  },
]
