// Draws the arrows between the boxes of steps, after the browser has laid the boxes out. Lines run along rows and in the
// gaps between lanes, so that no line crosses a box.
{
  const NS = 'http://www.w3.org/2000/svg'
  /** The height of a printed page that fits both A4 and Letter. */
  const PAPER_PX = 920
  const ENDS = {
    blocks: 'M0 -6V6', // a bar: the arrow ends in a block
    frees: 'M0 0L-8 -4.5V4.5Z',
    reads: 'M-7 -5L0 0L-7 5',
    misses: 'M-9 -5L1 5M-9 5L1 -5',
  }

  const element = (name, attributes) => {
    const made = document.createElementNS(NS, name)
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value))
    return made
  }

  const lanes = document.getElementById('lanes')
  const svg = lanes?.querySelector('.links')
  const links = JSON.parse(svg?.getAttribute('data-links') ?? '[]')
  const find = (selector) => lanes?.querySelector(selector)

  /** Arrows join the boxes. If all lanes share one column, they join the dots on the rails. */
  const isOneColumn = () => {
    const dot = find('.dot')
    return dot !== null && dot !== undefined && getComputedStyle(dot).display !== 'none'
  }

  const nodeOf = (step) => find(isOneColumn() ? `[data-dot="${step}"]` : `.box[data-step="${step}"]`)
  const asideOf = (at, of) =>
    find(isOneColumn() ? `[data-aside-dot="${at}:${of}"]` : `[data-aside="${at}:${of}"]`)

  /** @returns {{ kind: string, from: Element, to: Element, steps: number[] } | undefined} */
  const ends = ({ kind, from, to }) => {
    const source = nodeOf(from)
    const target =
      kind === 'frees'
        ? (asideOf(from, to) ?? nodeOf(to))
        : // The statement began to wait for this step later, so the arrow meets the bar.
          kind === 'blocks' && from > to
          ? (find(`[data-pause="${to}"]`) ?? nodeOf(to))
          : nodeOf(to)
    return source && target ? { kind, from: source, to: target, steps: [from, to] } : undefined
  }

  const draw = () => {
    if (!svg || !lanes) return
    svg.replaceChildren()
    const origin = svg.getBoundingClientRect()
    const rectOf = (node) => {
      const { left, right, top, bottom } = node.getBoundingClientRect()
      return {
        left: left - origin.left,
        right: right - origin.left,
        top: top - origin.top,
        bottom: bottom - origin.top,
      }
    }
    const arrows = links
      .map(ends)
      .filter((link) => link)
      .map((link) => ({ ...link, source: rectOf(link.from), target: rectOf(link.to) }))
    for (const arrow of arrows) aim(arrow)
    spreadPorts(arrows)
    spreadInGaps(arrows)
    for (const arrow of arrows) paint(arrow)
  }

  const middle = ({ left, right }) => (left + right) / 2

  /** The sides at which an arrow leaves and arrives: those next to the gap that the arrow uses. */
  const aim = (arrow) => {
    const { source, target } = arrow
    const distance = middle(target) - middle(source)
    arrow.outX = distance < -1 ? source.left : source.right
    arrow.inX = distance > 1 ? target.left : target.right
    arrow.sign = distance > 1 ? -1 : 1
    arrow.gap = Math.round(arrow.inX)
  }

  /** Spreads the arrows at one side of a box over its height. */
  const spreadPorts = (arrows) => {
    const sides = new Map()
    const add = (arrow, end, node, x, other) => {
      const key = sides.get(node) ?? new Map()
      sides.set(node, key)
      key.set(x, [...(key.get(x) ?? []), { arrow, end, other }])
    }
    for (const arrow of arrows) {
      const { source, target } = arrow
      arrow.isStraight = arrow.from !== arrow.to && target.top < source.bottom && source.top < target.bottom
      add(arrow, 'outY', arrow.from, arrow.outX, target.top)
      if (!arrow.isStraight) add(arrow, 'inY', arrow.to, arrow.inX, source.top)
    }
    for (const bySide of sides.values())
      for (const ports of bySide.values()) {
        const source = ports[0].end === 'outY' ? ports[0].arrow.source : ports[0].arrow.target
        const height = source.bottom - source.top
        ports.sort((a, b) => a.other - b.other)
        ports.forEach((port, i) => {
          const part = height < 20 ? 0.5 : (i + 1) / (ports.length + 1)
          port.arrow[port.end] = source.top + height * part
        })
      }
    for (const arrow of arrows)
      if (arrow.isStraight) {
        const { top, bottom } = arrow.target
        arrow.outY = arrow.inY = Math.min(Math.max(arrow.outY, top + 4), bottom - 4)
      }
  }

  /** Moves lines in one gap side by side where they would overlap. */
  const spreadInGaps = (arrows) => {
    const gaps = new Map()
    for (const arrow of arrows.filter(({ isStraight }) => !isStraight))
      gaps.set(arrow.gap, [...(gaps.get(arrow.gap) ?? []), arrow])
    const step = isOneColumn() ? 4 : 7
    for (const group of gaps.values()) {
      const ends = []
      group.sort((a, b) => Math.min(a.outY, a.inY) - Math.min(b.outY, b.inY))
      for (const arrow of group) {
        const top = Math.min(arrow.outY, arrow.inY)
        let slot = ends.findIndex((end) => end < top - 4)
        if (slot < 0) slot = ends.length
        ends[slot] = Math.max(arrow.outY, arrow.inY)
        const most = isOneColumn() ? 2 : 4
        arrow.x = arrow.inX + arrow.sign * ((isOneColumn() ? 5 : 14) + (slot % most) * step)
      }
    }
  }

  const pathOf = ({ isStraight, outX, outY, inX, inY, x }) => {
    if (isStraight || Math.abs(outY - inY) < 2) return `M${outX} ${outY}H${inX}`
    const down = inY > outY ? 1 : -1
    const r = Math.min(6, Math.abs(inY - outY) / 2, Math.abs(x - outX), Math.abs(inX - x))
    const first = Math.sign(x - outX)
    const last = Math.sign(inX - x)
    return `M${outX} ${outY}H${x - first * r}Q${x} ${outY} ${x} ${outY + down * r}V${inY - down * r}Q${x} ${inY} ${x + last * r} ${inY}H${inX}`
  }

  const paint = (arrow) => {
    const { kind, inX, inY, sign, steps } = arrow
    const turn = sign < 0 ? 0 : 180
    // The line ends before the edge, so that the box does not cover its end.
    const tip = inX + sign * (kind === 'blocks' ? 5 : 3)
    const group = element('g', { class: kind, 'data-steps': steps.join(' ') })
    group.append(
      element('path', {
        class: `link ${kind}`,
        d: pathOf({ ...arrow, inX: kind === 'misses' ? tip + sign * 4 : tip }),
      }),
      element('path', {
        class: `end ${kind}`,
        d: ENDS[kind],
        transform: `translate(${tip} ${inY}) rotate(${turn})`,
      }),
    )
    svg.append(group)
    mark(group)
  }

  let current = -1
  const mark = (group) => {
    const isNow = group.getAttribute('data-steps')?.split(' ').includes(String(current)) ?? false
    for (const path of group.children) path.classList.toggle('now', isNow)
  }
  document.addEventListener('dibs-step', (event) => {
    current = /** @type {CustomEvent<number>} */ (event).detail
    for (const group of svg?.children ?? []) mark(group)
  })

  for (const sample of document.querySelectorAll('[data-sample]')) {
    const kind = sample.getAttribute('data-sample') ?? ''
    const group = element('g', { class: kind })
    group.append(
      element('path', { class: `link ${kind}`, d: 'M1 6H30' }),
      element('path', { class: `end ${kind}`, d: ENDS[kind], transform: 'translate(30 6)' }),
    )
    sample.append(group)
  }

  if (lanes) {
    new ResizeObserver(draw).observe(lanes)
    document.fonts?.ready.then(draw)
    // Paper has another width, and no event tells when the print layout is done.
    addEventListener('beforeprint', () => {
      const { dataset } = document.documentElement
      dataset.printing = 'page'
      if (lanes.offsetHeight > PAPER_PX) dataset.printing = 'pages'
      draw()
    })
    addEventListener('afterprint', () => {
      delete document.documentElement.dataset.printing
      draw()
    })
  }
}
