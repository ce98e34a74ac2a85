import type { Page } from 'playwright-core'

export interface LowContrast {
  readonly text: string
  readonly ratio: number
  readonly colors: string
}

/**
 * Every piece of text in sight whose color is too near to what is behind it, by the formula of WCAG 2. What is behind is the
 * first ancestor with a color of its own.
 */
export async function findLowContrast(page: Page, least = 4.5): Promise<LowContrast[]> {
  // Text, because it runs in the page, and the types of this project have no `document`.
  return (await page.evaluate(`(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
    const rgba = (color) => {
      canvas.clearRect(0, 0, 1, 1)
      canvas.fillStyle = color
      canvas.fillRect(0, 0, 1, 1)
      return [...canvas.getImageData(0, 0, 1, 1).data]
    }
    const light = (color) => {
      const [r, g, b] = color.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
      return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const color = rgba(getComputedStyle(at).backgroundColor)
        if (color[3] === 255) return color
      }
      return rgba(getComputedStyle(document.body).backgroundColor)
    }
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    const found = []
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement
      const text = walker.currentNode.textContent.trim()
      if (!text || !element.checkVisibility() || ['SCRIPT', 'STYLE'].includes(element.tagName)) continue
      const [front, back] = [rgba(getComputedStyle(element).color), behind(element)]
      const [high, low] = [light(front), light(back)].sort((a, b) => b - a)
      const ratio = (high + 0.05) / (low + 0.05)
      if (ratio < ${least}) found.push({ text, ratio, colors: front + ' on ' + back })
    }
    return found
  })()`)) as LowContrast[]
}
