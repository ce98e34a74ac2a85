/** For a message, after the name of a holder. */
export const describeLease = (until: Date | undefined): string =>
  until ? ` (lease until ${until.toISOString()}, unless renewed)` : ''
