// Buttons that copy the text of an element: <button data-copy="its id">.
for (const button of document.querySelectorAll('[data-copy]')) {
  const label = button.textContent
  button.addEventListener('click', async () => {
    const source = document.getElementById(button.getAttribute('data-copy') ?? '')
    if (!source) return
    let isCopied = true
    try {
      await navigator.clipboard.writeText(source.textContent ?? '')
    } catch {
      // The clipboard is missing or forbidden. The text is selected instead, so that the reader can copy it.
      getSelection()?.selectAllChildren(source)
      isCopied = false
    }
    button.textContent = isCopied ? 'Copied' : 'Marked'
    setTimeout(() => {
      button.textContent = label
    }, 1500)
  })
}
