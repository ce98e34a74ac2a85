// docs/errors.md, made from the registry in the built package: --write writes it, else it is compared.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { errorRegistry } from '../build/errors.js'

const yesNo = (value) => (value ? 'yes' : 'no')
const rows = errorRegistry.map(
  ({ name, entry }) =>
    `| [${name}](#${name.toLowerCase()}) | \`${entry.code}\` | ${entry.status} | ${yesNo(entry.retryable)} |`,
)
const sections = errorRegistry.map(
  ({ name, entry: { code, status, retryable, means, remedy } }) => `## ${name}

\`${code}\` · HTTP ${status} · ${retryable ? 'retryable' : 'not retryable'}

${means}

**What to do:** ${remedy}
`,
)

const page = `<!-- Made from src/errors.ts by \`npm run docs\`. Do not edit. -->

# Errors

Every error of Dibs is a \`DibsError\` with a stable \`code\`, \`retryable\` (the same call, made again from its start,
can succeed), the HTTP \`status\` that says the same, the ids you need as fields, and the error below it as \`cause\`.
Compare \`code\`, or use \`instanceof\`; messages may change.

[\`toProblem(error)\`](http.md#any-error-as-a-problem-toproblem) makes an HTTP answer of any error. It shows a client only what a client may see.

| class | code | HTTP | retryable |
|---|---|---|---|
${rows.join('\n')}

${sections.join('\n')}`

const file = join(import.meta.dirname, '../docs/errors.md')
if (process.argv.includes('--write')) writeFileSync(file, page)
else if (readFileSync(file, 'utf8') !== page) {
  console.error('docs/errors.md does not fit src/errors.ts. Run: npm run docs')
  process.exitCode = 1
}
