import { appendFileSync } from 'node:fs'
import type { Reporter, TestModule } from 'vitest/node'

/** Prints one line of counts. With DIBS_TEST_DURATIONS, also appends how long each file took to that file. */
export default class RunSummary implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const count = { passed: 0, failed: 0, skipped: 0 }
    for (const module of modules)
      for (const test of module.children.allTests()) {
        const { state } = test.result()
        count[state === 'pending' ? 'skipped' : state]++
      }
    console.log(`${count.passed} passed, ${count.failed} failed, ${count.skipped} skipped`)
    const file = process.env.DIBS_TEST_DURATIONS
    if (!file) return
    const lines = modules.map((module) => {
      const seconds = module.diagnostic().duration / 1_000
      return `${seconds.toFixed(1)} ${module.project.name} ${module.relativeModuleId}\n`
    })
    appendFileSync(file, lines.join(''))
  }
}
