import type { ClientBase, QueryResult } from 'pg'
import { ExplorationError } from '../../../errors.js'
import {
  countRows,
  EXCLUSIVE,
  type Note,
  RESOLVE,
  type Relation,
  TAKE_NOTE,
  UPDATED,
  WRITTEN_BY,
  type Written,
} from './reset-queries.js'

/** Dead rows go when their page is next read, but their line pointers stay, and every scan walks them. */
const RUNS_PER_VACUUM = 256
const UNDEFINED_TABLE = '42P01'

/**
 * Puts the database back between two schedules: empties the tables that were written, and sets the sequences back
 * to where they were. The connection must be the server's own, not one of a pooler in between.
 */
export class Reset {
  /** Rows shall lie in the same places each time, and not only be the same. */
  isTidy = false
  readonly #control: Pick<ClientBase, 'query'>
  readonly #note: Note
  readonly #filled: ReadonlySet<string>
  /** By oid: tables and sequences to put back, and what else was met, so that it is not met again. */
  readonly #relations = new Map<string, Relation>()
  /** Tables whose rows are known to be the exploration's own. */
  readonly #own = new Set<string>()
  /** Some name may be wrong: DDL ran, or what it made was not committed when last seen. */
  #isStale = false
  #isSetupChecked = false
  #text: string | undefined
  #runs = 0

  private constructor(control: Pick<ClientBase, 'query'>, note: Note) {
    this.#control = control
    this.#note = note
    this.#filled = new Set(note.filled)
  }

  /** Notes where all sequences stand and which tables have rows, before anything of the exploration ran. */
  static async begin(control: Pick<ClientBase, 'query'>): Promise<Reset> {
    // Several statements have several results, which the types of `pg` do not say.
    const results: QueryResult<{ note: Note }>[] = [await control.query<{ note: Note }>(TAKE_NOTE)].flat()
    const note = results.at(-1)?.rows[0]?.note
    if (!note) throw new ExplorationError('The server has not said what its tables hold.', 'reset')
    return new Reset(control, note)
  }

  /**
   * Learns what the open transaction of backend `pid` has written, from its locks. To be called just before it
   * ends: also before ROLLBACK, which takes back no `nextval`.
   */
  async note(pid: number): Promise<void> {
    const { rows } = await this.#control.query<Written>({
      name: 'dibs_reset_written_by',
      text: WRITTEN_BY,
      values: [pid, [...this.#relations.keys()]],
    })
    // What DDL has touched may have another name when the transaction has ended, or be seen only then.
    if (rows.some(({ mode }) => mode === 'AccessExclusiveLock')) this.#isStale = true
    const unknown = rows.map(({ oid }) => oid).filter((oid) => !this.#relations.has(oid))
    if (unknown.length > 0) await this.#resolve(unknown)
  }

  /** How many things were written that nobody else could see yet: they were made in that transaction. */
  get newRelations(): number {
    return this.#of('unseen').length
  }

  /** The tables written so far, as quoted and qualified names. */
  get tables(): readonly string[] {
    return this.#names('table', 'partitioned')
  }

  /**
   * Refuses to go on if a written table holds rows that were there before, since `run` would delete them. To be
   * called once after the first `setup`, whose own rows are younger than `begin`, and once after the first run of
   * the actors: there it counts what the table held at `begin`, because an UPDATE makes an old row look young.
   */
  async protectRows(): Promise<void> {
    const isByActors = this.#isSetupChecked
    this.#isSetupChecked = true
    await this.#refresh()
    const doubtful = this.#unprotected().filter(({ oid }) => this.#filled.has(oid))
    if (doubtful.length > 0) await this.#refuseRows(doubtful, isByActors)
    for (const { oid } of this.#unprotected()) this.#own.add(oid)
  }

  /**
   * Refuses an UPDATE by `setup` of rows that were there before, before it is committed: afterwards they would look as
   * young as rows that it made. To be called after `note`. `ask` puts a question to the session itself.
   */
  async protectUpdates(ask: (sql: string) => Promise<string>): Promise<void> {
    const updated = (await ask(UPDATED)).split(' ').flatMap((entry) => {
      const [oid = '', inserted = ''] = entry.split(':')
      const relation = this.#relations.get(oid)
      return relation && this.#filled.has(oid) ? [{ relation, inserted: Number(inserted) }] : []
    })
    if (updated.length === 0) return
    const counts = await ask(countRows(updated.map(({ relation }) => relation.name)))
    // Where there are more rows than this transaction has made, older ones are among them.
    const doubtful = updated.flatMap(({ relation, inserted }, i) =>
      Number(counts.split(' ')[i]) > inserted ? [relation] : [],
    )
    if (doubtful.length === 0) return
    // Nobody else can look into a table that it has locked as a whole.
    const locked = (await ask(EXCLUSIVE)).split(' ')
    const hidden = doubtful.filter(({ oid }) => locked.includes(oid))
    if (hidden.length > 0) throw refusal(hidden.map(({ name }) => name))
    await this.#refuseRows(doubtful, false)
  }

  /** Empties the written tables and sets the sequences back, in one round trip unless something new turned up. */
  async run(): Promise<void> {
    await this.#refresh()
    // A later schedule may be the first to write to some table.
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
    if ((this.isTidy || this.#runs % RUNS_PER_VACUUM === 0) && tables.length > 0)
      await this.#control.query(`vacuum (skip_locked) ${tables.join(', ')}`)
  }

  async #resolve(oids: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<Relation>(RESOLVE, [oids])
    for (const relation of rows) this.#relations.set(relation.oid, relation)
    this.#text = undefined
  }

  /** Now that no transaction is open, what is not there is gone. */
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
    return this.#of('table').filter(({ oid }) => !this.#own.has(oid))
  }

  async #refuseRows(tables: readonly Relation[], isByActors: boolean): Promise<void> {
    const isOld = isByActors ? 'true' : `pg_catalog.age(xmin) > pg_catalog.age('${this.#note.xid}'::xid)`
    const counts = tables.map(({ name }) => `(select count(*)::int from only ${name} where ${isOld})`)
    const { rows } = await this.#control.query<{ counts: number[] }>(
      `select array[${counts.join(', ')}] as counts`,
    )
    const named = tables.flatMap(({ name }, index) => {
      const left = rows[0]?.counts[index] ?? 0
      // Actors that have deleted them all would begin the next schedule without them.
      return left > 0 || isByActors ? [`${name} (${left} ${left === 1 ? 'row' : 'rows'} now)`] : []
    })
    if (named.length > 0) throw refusal(named)
  }

  async #send(): Promise<void> {
    this.#text ??= this.#render()
    if (this.#text !== '') await this.#control.query(this.#text)
  }

  /**
   * One message of several statements is one transaction, and leaves none open if it fails. One statement deletes
   * from all tables, since foreign keys are checked at its end: no order of tables is needed, not even for circles.
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
      ...(this.#note.mayReplicate
        ? ['set local session_replication_role = replica', ...empty]
        : [...empty, ...empty]), // again, for what triggers on DELETE have written into the same tables
      ...(sequences.length > 0 ? [`select ${sequences.join(', ')}`] : []),
    ].join('; ')
  }

  #setBack({ oid, name, start }: Relation): string[] {
    const noted = this.#note.sequences.find((sequence) => sequence.oid === oid)
    if (noted && noted.last === null) return [] // it could not be read, so where it stood is unknown
    const [value, called] = noted ? [noted.last, noted.called] : [start, false]
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
