/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'election.drain',
    what: 'A leader hands over before its work ended.',
    tests: ['election'],
  },
  {
    guard: 'election.resign',
    from: /=> .*/,
    to: '=> {}',
    what: 'A leader that is told to stop goes on.',
    tests: ['election'],
  },
  {
    guard: 'election.release',
    what: 'A leader that stops keeps its lock.',
    tests: ['election'],
  },
  {
    guard: 'election.close',
    what: 'A term outlasts its instance.',
    tests: ['election'],
  },
  {
    guard: 'election.stopped',
    if: false,
    what: 'A candidate that was stopped leads.',
    tests: ['election'],
  },
  {
    guard: 'election.lost-signal',
    what: 'A leader does not hear of a lost lock.',
    tests: ['election'],
  },
  {
    guard: 'election.guard-resigned',
    what: 'A leader that has resigned writes as leader.',
    tests: ['election'],
  },
]
