import pg from 'pg'

/**
 * A client that proves its knowledge of the password without sending it, and requires the same proof from the server.
 * If the embedded server is down, another user of the machine may listen on its port. `pg` would send the password to a
 * server that asks for clear text, and statements to a server that asks for nothing.
 */
export class ScramClient extends pg.Client {
  static readonly provesPassword = true

  constructor(config?: string | pg.ClientConfig) {
    super(config)
    const { connection } = this
    let hasProved = false
    // These listeners run before those of `pg`, which are added at connect.
    connection.once('authenticationSASLFinal', () => {
      hasProved = true // `pg` checks the proof, and ends the connection if it is wrong
    })
    const refuse = (): void => {
      if (hasProved) return
      const who = 'the process that listens on the port of the embedded PostgreSQL'
      connection.removeAllListeners('readyForQuery') // the message may have been read already
      connection.stream.destroy(new Error(`${who} does not prove that it knows the password`))
    }
    for (const way of ['CleartextPassword', 'MD5Password', 'Ok'])
      connection.once(`authentication${way}`, refuse)
  }
}
