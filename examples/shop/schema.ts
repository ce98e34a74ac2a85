import { bigint, integer, pgTable, text } from 'drizzle-orm/pg-core'

export const stock = pgTable('shop_stock', {
  sku: text().primaryKey(),
  amount: integer().notNull(),
})

export const orders = pgTable('shop_orders', {
  id: bigint({ mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
  customer: text().notNull(),
  sku: text().notNull(),
})

/** What a migration tool would run. `if not exists`, so that the example can start twice. */
export const createTables = `
  create table if not exists shop_stock (sku text primary key, amount int not null check (amount >= 0));
  create table if not exists shop_orders (
    id bigint generated always as identity primary key,
    customer text not null,
    sku text not null
  );
  insert into shop_stock values ('lamp', 5), ('chair', 1) on conflict do nothing`
