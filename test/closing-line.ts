/**
 * Closes a test run with `N passed, N failed` alone on a line, whatever other reporters print.
 * Invariant: whatever makes the run fail is counted as failed, also a file that does not load and a hook that throws.
 */
import type { Reporter, TestModule } from 'vitest/node';

export default class ClosingLine implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>, unhandledErrors: ReadonlyArray<unknown>): void {
    let passed = 0;
    let failed = unhandledErrors.length;
    let skipped = 0;
    for (const module of modules) {
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        if (state === 'passed') passed++;
        else if (state === 'failed') failed++;
        else skipped++;
      }
      // Errors outside of tests: of the file itself, and of hooks.
      failed += module.errors().length;
      for (const suite of module.children.allSuites()) failed += suite.errors().length;
    }
    // Registered on exit so that the line comes after every other reporter's summary.
    process.once('exit', () => {
      if (skipped > 0) process.stdout.write(`\n${skipped} skipped`);
      process.stdout.write(`\n${passed} passed, ${failed} failed\n`);
    });
  }
}
