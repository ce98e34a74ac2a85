import type { Dibs } from '../../src/dibs.js'
import type { Aggregate } from '../../src/tables/aggregate/aggregate.js'
import type { AggregateOptions } from '../../src/tables/aggregate/aggregate-spec.js'
import { openTables } from './open-tables.js'

/** Three parents without children, and aggregates of them, each under a name of its own. `columns`: what else a parent has; `tables`: what else there is. */
export function parentsAndChildren({ columns = '', tables = '' } = {}) {
  const fixture = openTables(
    `create table {shop}.parent (id bigint primary key, total int not null default 0, completed int not null default 0,
       amount numeric(10, 2) not null default 0 check (amount < 1000), title varchar(5)${columns});
     create table {shop}.child (id int primary key, parent_id int references {shop}.parent, status text not null default 'NEW', amount numeric, word text);
     create index on {shop}.child (parent_id);${tables}`,
    'insert into {shop}.parent (id) values (1), (2), (3)',
  )
  let made = 0
  const options = (over: Partial<AggregateOptions> = {}): AggregateOptions => ({
    parent: fixture.at('parent'),
    child: fixture.at('child'),
    foreignKey: 'parent_id',
    columns: {
      total: 'count(*)',
      completed: "count(*) filter (where status = 'COMPLETED')",
      amount: 'coalesce(sum(amount), 0)',
    },
    ...over,
  })
  const aggregate = (
    over: Partial<AggregateOptions> = {},
    dibs: Dibs = fixture.dibs,
    name = `totals-${++made}`,
  ): Aggregate<Record<string, unknown>> => dibs.aggregate(name, options(over))
  const insert = (rows: string) => fixture.pool.query(`insert into ${fixture.at('child')} values ${rows}`)
  return { fixture, options, aggregate, insert }
}
