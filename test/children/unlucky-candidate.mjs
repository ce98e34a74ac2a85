// A candidate whose first term fails, and that has nothing else to do: nothing but the candidacy keeps the process.
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, name, leaseMs, ...options } = JSON.parse(process.argv[2])
const pool = new pg.Pool({ connectionString: url, allowExitOnIdle: true })
const dibs = await Dibs.open({ pool, schema, logger: false, migrate: 'off', ...options, listen: false })
let terms = 0
const election = dibs.elect(name, {
  leaseMs,
  onElected: () => {
    if (++terms === 1) throw new Error('no')
    void election.stop()
  },
})
process.once('exit', () => console.log(`${terms} terms`))
