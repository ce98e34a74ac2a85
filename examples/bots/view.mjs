// A table in the terminal that is drawn anew in its place; plain lines where there is no terminal.

const isLive = process.stdout.isTTY === true
const paint = (code) => (text) => (isLive && !process.env.NO_COLOR ? `\x1b[${code}m${text}\x1b[0m` : text)
const colors = {
  starting: paint(2),
  idle: paint(2),
  working: paint(32),
  frozen: paint(36),
  killed: paint(31),
  stopped: paint(2),
}
const bold = paint(1)
const dim = paint(2)

const BAR = 40
const NEWS = 8

export class View {
  #drawn = 0
  #news = []
  #startedAt = performance.now()
  #plainAt = 0

  get #seconds() {
    return `${((performance.now() - this.#startedAt) / 1000).toFixed(1)} s`.padStart(7)
  }

  /** Something has happened. */
  say(text) {
    const line = `${this.#seconds}  ${text}`
    if (!isLive) console.log(line)
    this.#news = [...this.#news, line].slice(-NEWS)
  }

  /** @param {{ bots: { name: string, pid: number, state: string, does: string, done: number }[], jobs: { added: number, ready: number, running: number, done: number } }} now */
  show({ bots, jobs }) {
    if (isLive) this.#draw(table(bots, jobs))
    else if (performance.now() - this.#plainAt >= 1_000) {
      this.#plainAt = performance.now()
      const counts = `ready ${jobs.ready}, running ${jobs.running}, done ${jobs.done} of ${jobs.added}`
      const working = bots.filter(({ state }) => state === 'working').length
      console.log(`${this.#seconds}  ${counts}; ${working} bots at work`)
    }
  }

  #draw(lines) {
    const all = [...lines, '', ...this.#news.map((line) => dim(line))]
    const up = this.#drawn > 0 ? `\x1b[${this.#drawn}A` : ''
    process.stdout.write(`${up}\x1b[J\x1b[?7l${all.join('\n')}\n\x1b[?7h`)
    this.#drawn = all.length
  }
}

function table(bots, { added, ready, running, done }) {
  const filled = Math.round((done / Math.max(1, added)) * BAR)
  return [
    '',
    bold('  bot     pid      state     done  runs'),
    ...bots.map(
      ({ name, pid, state, does, done: count }) =>
        `  ${name.padEnd(7)} ${String(pid).padEnd(8)} ${colors[state](state.padEnd(8))} ${String(count).padStart(5)}  ${does}`,
    ),
    '',
    `  ${bold('jobs')}  ready ${String(ready).padStart(4)}   running ${String(running).padStart(3)}   done ${String(done).padStart(4)} of ${added}   ${'█'.repeat(filled)}${dim('░'.repeat(BAR - filled))}`,
  ]
}
