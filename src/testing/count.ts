/** `1 recovery`, `3 recoveries`. */
export const count = (n: number, thing: string): string =>
  `${n.toLocaleString('en')} ${n === 1 ? thing : `${thing.replace(/(?<![aeiou])y$/, 'ie')}s`}`
