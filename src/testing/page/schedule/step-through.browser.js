// Steps through the schedule: arrow keys, buttons, clicks, and `#step=4` in the address.
{
  /** @type {(selector: string) => HTMLElement[]} */
  const all = (selector) => Array.from(document.querySelectorAll(selector))
  const boxes = all('.box')
  const details = all('.detail')
  const numbers = all('.number')
  /** @type {HTMLElement} */
  const band = document.querySelector('.band')
  /** @type {NodeListOf<HTMLButtonElement>} */
  const buttons = document.querySelectorAll('[data-go]')
  const place = document.getElementById('place')
  const calm = matchMedia('(prefers-reduced-motion: reduce)')
  let current = 0

  const fromAddress = () => {
    const found = /^#step=(\d+)$/.exec(location.hash)
    return found ? Math.min(Math.max(Number(found[1]), 1), boxes.length) - 1 : undefined
  }

  /** @type {(index: number, behavior?: ScrollBehavior | 'none') => void} */
  const show = (index, behavior = calm.matches ? 'auto' : 'smooth') => {
    const hadFocus = boxes.some((box) => box === document.activeElement)
    current = index
    boxes.forEach((box, i) => {
      box.tabIndex = i === index ? 0 : -1
      if (i === index) box.setAttribute('aria-current', 'step')
      else box.removeAttribute('aria-current')
    })
    numbers.forEach((number, i) => {
      number.classList.toggle('now', i === index)
    })
    details.forEach((detail, i) => {
      detail.hidden = i !== index
    })
    details[index].parentElement.scrollTop = 0
    for (const name of ['--row', '--slot'])
      band.style.setProperty(name, boxes[index].style.getPropertyValue(name))
    place.textContent = `Step ${index + 1} of ${boxes.length}`
    for (const button of buttons) button.disabled = target(button.getAttribute('data-go')) === index
    document.dispatchEvent(new CustomEvent('dibs-step', { detail: index }))
    if (hadFocus) boxes[index].focus({ preventScroll: true })
    if (behavior !== 'none') boxes[index].scrollIntoView({ block: 'nearest', behavior })
  }

  const go = (index) => {
    if (index === undefined || index === current) return
    show(index)
    try {
      history.replaceState(null, '', `#step=${index + 1}`)
    } catch {
      // Some viewers show the page without an address.
    }
  }

  const target = (where) =>
    ({
      first: 0,
      previous: Math.max(current - 1, 0),
      next: Math.min(current + 1, boxes.length - 1),
      last: boxes.length - 1,
    })[where]

  /** The step before or after in the same lane. */
  const alongLane = (direction) => {
    const lane = boxes[current].getAttribute('data-lane')
    for (let i = current + direction; boxes[i]; i += direction)
      if (boxes[i].getAttribute('data-lane') === lane) return i
    return undefined
  }

  const KEYS = { ArrowLeft: 'previous', ArrowRight: 'next', Home: 'first', End: 'last' }

  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return
    const isInLanes = boxes.includes(event.target)
    const direction = isInLanes ? { ArrowUp: -1, ArrowDown: 1 }[event.key] : undefined
    // Outside the lanes, up and down scroll the page. Within `.scrolls`, arrow keys scroll sideways.
    if (direction) go(alongLane(direction))
    else if (KEYS[event.key] && !event.target.closest?.('.printout, .scrolls')) go(target(KEYS[event.key]))
    else return
    event.preventDefault()
  }

  if (boxes.length > 0) {
    document.addEventListener('keydown', onKey)
    boxes.forEach((box, i) => {
      box.addEventListener('click', () => go(i))
    })
    for (const aside of document.querySelectorAll('[data-of-step]'))
      aside.addEventListener('click', () => go(Number(aside.getAttribute('data-of-step'))))
    for (const button of buttons)
      button.addEventListener('click', () => go(target(button.getAttribute('data-go'))))
    addEventListener('hashchange', () => {
      const index = fromAddress()
      if (index !== undefined) show(index)
    })
    const asked = fromAddress()
    show(asked ?? 0, asked === undefined ? 'none' : 'auto')
  }
}
