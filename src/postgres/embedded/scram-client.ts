import pg from 'pg'

/**
 * A client that proves it knows the password and never says it. When the embedded server is down, another user of
 * the machine may listen on its port; `pg` would send the password to whoever asks for it in clear.
 */
export class ScramClient extends pg.Client {
  constructor(config?: string | pg.ClientConfig) {
    super(config)
    // Comes before the listener of `pg`, which is added when it connects.
    this.connection?.once('authenticationCleartextPassword', () => {
      const error = new Error(
        'whoever listens on the port of the embedded PostgreSQL asks for its password in clear',
      )
      this.connection?.stream.destroy(error)
    })
  }
}
