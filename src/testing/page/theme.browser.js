// A button that switches between light and dark. Stores the choice where the browser allows it.
{
  const root = document.documentElement
  const button = document.querySelector('[data-theme-toggle]')
  const system = matchMedia('(prefers-color-scheme: dark)')
  const key = 'dibs-theme'

  const stored = () => {
    try {
      return localStorage.getItem(key)
    } catch {
      return null // pages without an origin have no storage
    }
  }

  const isDark = () => (root.dataset.theme ?? (system.matches ? 'dark' : 'light')) === 'dark'

  const show = () => {
    if (button) button.textContent = isDark() ? 'Light' : 'Dark'
  }

  const before = stored()
  if (before === 'dark' || before === 'light') root.dataset.theme = before
  if (button instanceof HTMLElement) button.hidden = false
  button?.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark'
    try {
      localStorage.setItem(key, root.dataset.theme)
    } catch {}
    show()
  })
  system.addEventListener('change', show)
  show()
}
