import { defineConfig } from 'vitest/config';

export default defineConfig({
  resolve: { alias: { hone: new URL('src/index.ts', import.meta.url).pathname } },
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    isolate: false,
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 60_000,
    reporters: ['default', './test/closing-line.ts'],
  },
});
