/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'ops.maintenance-busy-later',
    if: false,
    what: 'Maintenance does not return to rows that others had locked.',
    tests: ['quota-windows'],
  },
  {
    guard: 'ops.maintenance-backoff',
    from: /= .*/,
    to: '= 0',
    what: 'Maintenance asks an unavailable database without a delay.',
    tests: ['maintenance'],
  },
  {
    guard: 'ops.monitor-once',
    from: /\(\S+\.has\(\S+\) \|\| /,
    to: '(',
    what: 'A monitor starts while it still runs.',
    tests: ['maintenance'],
  },
  {
    guard: 'ops.maintenance-elect',
    to: 'return true',
    what: 'Each process removes the same expired rows.',
    tests: ['maintenance'],
  },
]
