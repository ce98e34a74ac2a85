// Marks the cell whose sheet is open, opens the point that the address names, and lets arrow keys move through the table.
{
  /** @type {HTMLAnchorElement[]} */
  const links = Array.from(document.querySelectorAll('.matrix a'))
  const first = document.querySelector('.matrix [aria-current]')
  const panel = document.querySelector('.panel')

  const follow = () => {
    const target = document.getElementById(location.hash.slice(1))
    const sheet = target?.closest('.sheet')
    const details = target?.closest('details')
    if (details) details.open = true
    const id = sheet?.querySelector('.anchor')?.id
    const current = sheet ? links.find(({ hash }) => hash === `#${id}`) : first
    for (const link of links)
      if (link === current) link.setAttribute('aria-current', 'true')
      else link.removeAttribute('aria-current')
    // Another sheet is read from its top.
    if (sheet && target?.id === id) panel.scrollTop = 0
  }
  addEventListener('hashchange', follow)
  follow()

  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }

  /** The next cell in that direction that has something to show. */
  const beside = (link, [down, right]) => {
    const cell = link.closest('td')
    const line = links.filter((other) => {
      const its = other.closest('td')
      const isInLine = right ? its?.parentElement === cell?.parentElement : its?.cellIndex === cell?.cellIndex
      return its && isInLine && other.checkVisibility()
    })
    return cell && line[line.indexOf(link) + down + right]
  }

  document.addEventListener('keydown', (event) => {
    const step = STEPS[event.key]
    if (!step || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return
    const link = /** @type {Element} */ (event.target).closest('.matrix a')
    const next = link && beside(link, step)
    if (!next) return
    event.preventDefault()
    location.replace(next.hash)
    next.focus()
  })
}
