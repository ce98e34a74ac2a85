import type { ClientBase, QueryResult } from 'pg'
import { ExplorationError } from '../../../errors.js'
import {
  countRows,
  EXCLUSIVE,
  type InitialState,
  READ_INITIAL_STATE,
  RESOLVE,
  type Relation,
  UPDATED,
  WRITTEN_BY,
  type Written,
} from './reset-queries.js'

/** A read of a page removes its dead rows, but leaves their line pointers, which slow down every scan. */
const RUNS_PER_VACUUM = 256
const UNDEFINED_TABLE = '42P01'

/**
 * Restores the database between two schedules: empties the tables that were written, and sets the sequences back
 * to where they were. The connection must not go through a pooler.
 */
export class Reset {
  /** True: vacuum the tables each time, so that the rows of all schedules have the same physical places. */
  vacuumsEachTime = false
  readonly #control: Pick<ClientBase, 'query'>
  readonly #initial: InitialState
  readonly #filled: ReadonlySet<string>
  /** By oid: the tables and sequences to restore, and other relations, which need not be looked up again. */
  readonly #relations = new Map<string, Relation>()
  /** The oids of tables of which all rows are known to come from the exploration. */
  readonly #ownTables = new Set<string>()
  /** True if some name may be wrong, since DDL ran, or since a relation was not committed when it was looked up. */
  #isStale = false
  #isSetupChecked = false
  #text: string | undefined
  #runs = 0

  private constructor(control: Pick<ClientBase, 'query'>, initial: InitialState) {
    this.#control = control
    this.#initial = initial
    this.#filled = new Set(initial.filled)
  }

  /** Reads the positions of all sequences and which tables have rows, before the exploration runs anything. */
  static async open(control: Pick<ClientBase, 'query'>): Promise<Reset> {
    // Several statements have several results, which the types of `pg` do not say.
    type Row = { state: InitialState }
    const results: QueryResult<Row>[] = [await control.query<Row>(READ_INITIAL_STATE)].flat()
    const state = results.at(-1)?.rows[0]?.state
    if (!state) throw new ExplorationError('The server has not said what its tables hold.', 'reset')
    return new Reset(control, state)
  }

  /**
   * Learns from the locks of backend `pid` what its open transaction has written. Must be called just before it
   * ends, also before ROLLBACK, which does not undo `nextval`.
   */
  async learnWrites(pid: number): Promise<void> {
    const { rows } = await this.#control.query<Written>({
      name: 'dibs_reset_written_by',
      text: WRITTEN_BY,
      values: [pid, [...this.#relations.keys()]],
    })
    // A relation that DDL has touched may have another name after the transaction, or be visible only then.
    if (rows.some(({ mode }) => mode === 'AccessExclusiveLock')) this.#isStale = true
    const unknown = rows.map(({ oid }) => oid).filter((oid) => !this.#relations.has(oid))
    if (unknown.length > 0) await this.#resolve(unknown)
  }

  /** The number of written relations that are not committed: their own transaction created them. */
  get newRelations(): number {
    return this.#of('unseen').length
  }

  /** The tables written so far, as quoted and qualified names. */
  get tables(): readonly string[] {
    return this.#names('table', 'partitioned')
  }

  /**
   * Throws if a written table holds rows from before the exploration, since `run` would delete them. Must be called
   * once after the first `setup`, whose rows are younger than `open`, and once after the first run of the actors.
   * There, every table counts that held rows at `open`, because an UPDATE makes an old row look young.
   */
  async protectRows(): Promise<void> {
    const isByActors = this.#isSetupChecked
    this.#isSetupChecked = true
    await this.#refresh()
    const suspects = this.#unprotected().filter(({ oid }) => this.#filled.has(oid))
    if (suspects.length > 0) await this.#refuseRows(suspects, isByActors)
    for (const { oid } of this.#unprotected()) this.#ownTables.add(oid)
  }

  /**
   * Throws before the COMMIT of an UPDATE by `setup` of rows from before the exploration. After the COMMIT they would look as
   * young as rows that `setup` inserted. Must be called after `learnWrites`.
   *
   * @param query runs a query on the session itself
   */
  async protectUpdates(query: (sql: string) => Promise<string>): Promise<void> {
    const updated = (await query(UPDATED)).split(' ').flatMap((entry) => {
      const [oid = '', inserted = ''] = entry.split(':')
      const relation = this.#relations.get(oid)
      return relation && this.#filled.has(oid) ? [{ relation, inserted: Number(inserted) }] : []
    })
    if (updated.length === 0) return
    const counts = await query(countRows(updated.map(({ relation }) => relation.name)))
    // A table with more rows than this transaction has inserted holds older ones.
    const suspects = updated.flatMap(({ relation, inserted }, i) =>
      Number(counts.split(' ')[i]) > inserted ? [relation] : [],
    )
    if (suspects.length === 0) return
    // No other session can read a table that this one has locked exclusively.
    const locked = (await query(EXCLUSIVE)).split(' ')
    const hidden = suspects.filter(({ oid }) => locked.includes(oid))
    if (hidden.length > 0) throw refusal(hidden.map(({ name }) => name))
    await this.#refuseRows(suspects, false)
  }

  /** Empties the written tables and sets the sequences back, in one round trip unless a table is new. */
  async run(): Promise<void> {
    await this.#refresh()
    // A later schedule may be the first that writes to a table.
    if (this.#unprotected().some(({ oid }) => this.#filled.has(oid))) {
      this.#isSetupChecked = true
      await this.protectRows()
    }
    try {
      await this.#send()
    } catch (error) {
      if (!isUndefinedTable(error)) throw error
      this.#isStale = true
      await this.#refresh()
      await this.#send()
    }
    this.#runs++
    const tables = this.#names('table')
    if ((this.vacuumsEachTime || this.#runs % RUNS_PER_VACUUM === 0) && tables.length > 0)
      await this.#control.query(`vacuum (skip_locked) ${tables.join(', ')}`)
  }

  async #resolve(oids: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<Relation>(RESOLVE, [oids])
    for (const relation of rows) this.#relations.set(relation.oid, relation)
    this.#text = undefined
  }

  /** Looks the relations up again, while no transaction is open, so that those not found are dropped. */
  async #refresh(): Promise<void> {
    if (!this.#isStale) return
    await this.#resolve([...this.#relations.keys()])
    for (const { oid } of this.#of('unseen')) this.#relations.delete(oid)
    this.#isStale = false
  }

  #of(...kinds: Relation['kind'][]): Relation[] {
    return [...this.#relations.values()].filter(({ kind }) => kinds.includes(kind))
  }

  #names(...kinds: Relation['kind'][]): string[] {
    return this.#of(...kinds)
      .map(({ name }) => name)
      .sort()
  }

  #unprotected(): Relation[] {
    return this.#of('table').filter(({ oid }) => !this.#ownTables.has(oid))
  }

  async #refuseRows(tables: readonly Relation[], isByActors: boolean): Promise<void> {
    const isOld = isByActors ? 'true' : `pg_catalog.age(xmin) > pg_catalog.age('${this.#initial.xid}'::xid)`
    const counts = tables.map(({ name }) => `(select count(*)::int from only ${name} where ${isOld})`)
    const { rows } = await this.#control.query<{ counts: number[] }>(
      `select array[${counts.join(', ')}] as counts`,
    )
    const named = tables.flatMap(({ name }, index) => {
      const left = rows[0]?.counts[index] ?? 0
      // If the actors have deleted all old rows, the next schedule would begin without them.
      return left > 0 || isByActors ? [`${name} (${left} ${left === 1 ? 'row' : 'rows'} now)`] : []
    })
    if (named.length > 0) throw refusal(named)
  }

  async #send(): Promise<void> {
    this.#text ??= this.#render()
    if (this.#text !== '') await this.#control.query(this.#text)
  }

  /**
   * Several statements in one message are one transaction, which is over even if it fails. One statement deletes
   * from all tables, because foreign keys are checked at its end, so that no order of the tables is needed.
   */
  #render(): string {
    const tables = this.#names('table')
    const sequences = this.#of('sequence').flatMap((sequence) => this.#setBack(sequence))
    if (tables.length + sequences.length === 0) return ''
    const parts = tables.map((name, index) => `t${index} as (delete from only ${name})`)
    const empty = parts.length > 0 ? [`with ${parts.join(', ')} select 1`] : []
    return [
      `set local lock_timeout = '10s'`,
      'set local row_security = off', // fails where a policy would hide rows from the DELETE
      ...(this.#initial.mayReplicate
        ? ['set local session_replication_role = replica', ...empty]
        : [...empty, ...empty]), // again, for rows that triggers on DELETE have written
      ...(sequences.length > 0 ? [`select ${sequences.join(', ')}`] : []),
    ].join('; ')
  }

  #setBack({ oid, name, start }: Relation): string[] {
    const initial = this.#initial.sequences.find((sequence) => sequence.oid === oid)
    if (initial && initial.last === null) return [] // the sequence could not be read, so its position is unknown
    const [value, called] = initial ? [initial.last, initial.called] : [start, false]
    return [`pg_catalog.setval('${name.replaceAll("'", "''")}', ${value}, ${called})`]
  }
}

function refusal(tables: readonly string[]): ExplorationError {
  return new ExplorationError(
    `What is run here writes to tables that held rows before it began: ${tables.join(', ')}. Emptying these tables between one time and the next would delete such rows, so nothing was emptied. Make the rows in \`setup\`, delete them beforehand, or pass a \`reset\` of your own.`,
    'reset',
  )
}

function isUndefinedTable(error: unknown): boolean {
  return error instanceof Error && 'code' in error && error.code === UNDEFINED_TABLE
}
