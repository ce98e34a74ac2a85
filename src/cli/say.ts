/** One line for the person who started this. Standard error is for what went wrong. */
export function say(line: string): void {
  process.stdout.write(`${line}\n`)
}
