/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'crash.timers',
    from: /\(\w+\(\w+\) \|\| /,
    to: '(',
    what: 'Timers of a dead process fire.',
    tests: ['crash'],
  },
  {
    guard: 'crash.effects',
    what: 'A dead process still has effects outside.',
    tests: ['effects'],
  },
  {
    guard: 'crash.sessions-end',
    what: 'Sessions of a dead process keep their locks.',
    tests: ['crash'],
  },
  {
    guard: 'crash.late-writes',
    from: /\(\(.*=> .*\)$/,
    to: '(() => false)',
    what: 'Late writes are not looked for.',
    tests: ['zombie'],
  },
  {
    guard: 'crash.lost-commits',
    from: '> 0',
    to: '> 3',
    what: 'A crash of the server loses no commits.',
    tests: ['server.process'],
  },
  {
    guard: 'crash.second-crash',
    from: /\? undefined : (.*)/,
    to: '? $1 : undefined',
    what: 'The second crash is left out.',
    tests: ['crash'],
  },
]
