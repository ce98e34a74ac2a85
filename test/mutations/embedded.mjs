/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'embedded.one-supervisor',
    if: true,
    what: 'Two supervisors own one server.',
    tests: ['supervisor.obstacles.process'],
  },
  {
    guard: 'embedded.grace',
    from: ' + GRACE_MS',
    to: '',
    what: 'A successor counts its clients before those it lost are back.',
    tests: ['supervisor.kill.process'],
  },
  {
    guard: 'embedded.greeting',
    to: 'true',
    what: 'Any listener at the address counts as the supervisor.',
    tests: ['supervisor.obstacles.process'],
  },
  {
    guard: 'embedded.process-identity',
    to: 'return true',
    what: 'Any process with the recorded number counts as the server.',
    tests: ['supervisor.obstacles.process'],
  },
  {
    guard: 'embedded.removed-folder',
    if: false,
    what: 'A server whose folder was removed is handed out.',
    tests: ['supervisor.obstacles.process'],
  },
]
