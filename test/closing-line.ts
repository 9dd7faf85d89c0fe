/** Closes a test run with `N passed, N failed` alone on a line, whatever other reporters print. */
import type { Reporter, TestModule } from 'vitest/node';

export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>, unhandledErrors: ReadonlyArray<unknown>): void {
    let passed = 0;
    let failed = unhandledErrors.length;
    let skipped = 0;
    for (const module of modules) {
      let ran = 0;
      for (const test of module.children.allTests()) {
        ran++;
        const { state } = test.result();
        if (state === 'passed') passed++;
        else if (state === 'failed') failed++;
        else skipped++;
      }
      if (module.state() === 'failed' && ran === 0) failed++;
    }
    // Registered on exit so that the line comes after every other reporter's summary.
    process.once('exit', () => {
      if (skipped > 0) process.stdout.write(`\n${skipped} skipped`);
      process.stdout.write(`\n${passed} passed, ${failed} failed\n`);
    });
  }
}
