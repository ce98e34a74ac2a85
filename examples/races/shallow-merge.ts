import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const respond = (name: string) => (db: Pool) =>
  db.query('update process set state = state || $1 where id = 7', [{ checks: { [name]: 'ok' } }])
// #endregion

// #region right
const respondInPlace = (name: string) => (db: Pool) =>
  db.query(`update process set state = jsonb_set(state, array['checks', $1], '"ok"') where id = 7`, [name])
// #endregion

export const race: Race = {
  title: 'A state, patched in one UPDATE',
  line: 'one of two responses is lost, with no race at all',
  claim:
    'The bus analysis: a response writes a patch, `state || patch`, in a single UPDATE. The merge keeps what is there.',
  fault:
    'The UPDATE is atomic and waits its turn, and still one response is lost: `||` merges the outermost keys only. Both patches hold `checks`, so the second replaces what the first has put there.',
  remedy:
    '`jsonb_set` writes at the depth where the responses differ. (Where `checks` is missing it writes nothing, and says nothing: make it with the process.) Better still is a row for each response, which needs no merge.',
  tables: 'create table process (id int primary key, state jsonb not null)',
  setup: (db) => db.query(`insert into process values (7, '{"checks": {}}')`),
  invariant: async (db) => {
    const { rows } = await db.query('select state from process')
    const { checks } = rows[0].state
    assert(checks.risk && checks.fraud, `two responses, and what is left is ${JSON.stringify(rows[0].state)}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { risk: respond('risk'), fraud: respond('fraud') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { risk: respondInPlace('risk'), fraud: respondInPlace('fraud') },
    },
  ],
}
