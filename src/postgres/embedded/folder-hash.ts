import { createHash } from 'node:crypto'

/** A short name for a folder, for places where its whole path is too long. */
export function folderHash(folder: string): string {
  return createHash('sha256').update(folder).digest('hex').slice(0, 16)
}
