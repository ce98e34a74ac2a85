import {
  closeSync,
  constants,
  fstatSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { EmbeddedServerError } from '../../errors.js'
import { nameUser } from './server-user.js'

const { O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR } = constants

/** Opens a log to append to it, and makes it if it is missing. Refuses links, which another user could have put there. */
export function openLog(file: string, folder: string): number {
  const opened = openOwn(file, folder, O_RDWR | O_APPEND | O_CREAT)
  if (fstatSync(opened).nlink <= 1) return opened
  closeSync(opened)
  throw refusal(file, folder, 'is a hard link: the same file has another name elsewhere')
}

/** Reads a file that this user wrote. Returns undefined if there is none. */
export function readOwnFile(file: string, folder: string): Buffer | undefined {
  let opened: number
  try {
    // Opening a named pipe would wait for a writer.
    opened = openOwn(file, folder, O_RDONLY | O_NONBLOCK)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  try {
    return readFileSync(opened)
  } finally {
    closeSync(opened)
  }
}

/** Replaces a file atomically: readers see the old text or the new one. A link of this name is replaced, not followed. */
export function replaceFile(file: string, text: string, mode: number): void {
  const draft = `${file}.${process.pid}`
  try {
    rmSync(draft, { force: true }) // of an earlier process with the same pid
    writeFileSync(draft, text, { mode, flag: 'wx' })
    renameSync(draft, file)
  } catch (error) {
    rmSync(draft, { force: true })
    throw error
  }
}

function openOwn(file: string, folder: string, flags: number): number {
  let opened: number
  try {
    opened = openSync(file, flags | O_NOFOLLOW, 0o600)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ELOOP') throw refusal(file, folder, 'is a symbolic link')
    throw error
  }
  const found = fstatSync(opened)
  if (found.isFile() && found.uid === process.getuid?.()) return opened
  closeSync(opened)
  throw refusal(
    file,
    folder,
    found.isFile()
      ? `belongs to ${nameUser(found.uid)}, and not to the user of this process`
      : 'is not a file',
  )
}

function refusal(file: string, folder: string, what: string): EmbeddedServerError {
  return new EmbeddedServerError(
    `${file} ${what}. Dibs does not use it, because another user may have put it there. Remove it, then start again.`,
    'no-permission',
    folder,
  )
}
