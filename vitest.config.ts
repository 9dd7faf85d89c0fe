import { defineConfig } from 'vitest/config';

export default defineConfig({
  resolve: { alias: { hone: new URL('src/index.ts', import.meta.url).pathname } },
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    isolate: false,
    pool: 'forks',
    maxWorkers: 2,
    // Generous: a machine that is busy with other work must not turn a slow test into a failing one.
    globalSetup: ['test/warm-corpus.ts'],
    testTimeout: 120_000,
    hookTimeout: 120_000,
    reporters: ['default', './test/closing-line.ts'],
  },
});
