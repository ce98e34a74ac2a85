/** Prints a line for the person who started the command. Errors go to standard error. */
export function printLine(line: string): void {
  process.stdout.write(`${line}\n`)
}
