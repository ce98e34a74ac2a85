import type { MigrationSource } from '../src/postgres/migrations/read-migrations.js'

/** Migrations with everything the migrator must cope with; child processes read them too, as JSON. */
export const fixtureSources: readonly MigrationSource[] = [
  {
    file: '0001_item.sql',
    text: `-- compatible_from: 1
create table {schema}.item (id bigint generated always as identity primary key, owner text not null);
insert into {schema}.item (owner) select 'owner ' || n from generate_series(1, 2000) n;
`,
  },
  {
    file: '0002_item_owner_index.sql',
    text: `-- compatible_from: 1
-- transaction: none
create index concurrently if not exists item_owner_idx on {schema}.item (owner);
`,
  },
  {
    file: '0003_item_price.sql',
    text: `-- compatible_from: 2
alter table {schema}.item add column price int not null default 0 check (price >= 0);
`,
  },
  {
    file: '0004_item_price_index.sql',
    text: `-- compatible_from: 3
-- transaction: none
create index concurrently if not exists item_price_idx on {schema}.item (price) where price > 0;
`,
  },
]
