/** The ErrorResponse of a server that dies: fields S, V, C, M. What drivers show as the severity is the translated S. */
export function lastWords(severity = 'PANIC'): Buffer {
  const fields = Buffer.from(`S${severity}\0VPANIC\0C58030\0Mcould not write to file\0\0`)
  const head = Buffer.alloc(5)
  head.write('E')
  head.writeInt32BE(fields.length + 4, 1)
  return Buffer.concat([head, fields])
}
