import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

/** Leaves a generated file alone that is right already: whoever watches it need not build again. */
export function writeIfChanged(target, text) {
  let before = ''
  try {
    before = readFileSync(target, 'utf8')
  } catch {}
  if (before === text) return
  mkdirSync(dirname(target), { recursive: true })
  writeFileSync(target, text)
}
