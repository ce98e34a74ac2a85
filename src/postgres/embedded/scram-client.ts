import pg from 'pg'

/**
 * A client that proves it knows the password without saying it, and has the server prove the same. When the embedded
 * server is down, another user of the machine may listen on its port: `pg` would send the password to whoever asks
 * for it in clear, and its statements to whoever asks for nothing.
 */
export class ScramClient extends pg.Client {
  static readonly provesPassword = true

  constructor(config?: string | pg.ClientConfig) {
    super(config)
    const { connection } = this
    let hasProved = false
    // These come before the listeners of `pg`, which are added when it connects.
    connection.once('authenticationSASLFinal', () => {
      hasProved = true // or `pg`, which looks at the proof, ends the connection
    })
    const refuse = (): void => {
      if (hasProved) return
      const who = 'whoever listens on the port of the embedded PostgreSQL'
      connection.removeAllListeners('readyForQuery') // it may be read already
      connection.stream.destroy(new Error(`${who} does not prove that it knows the password`))
    }
    for (const way of ['CleartextPassword', 'MD5Password', 'Ok'])
      connection.once(`authentication${way}`, refuse)
  }
}
