import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

import { expect, it } from 'vitest';

const hasClang = spawnSync('clang-16', ['--version']).status === 0;

it.skipIf(!hasClang)('the committed wasm files are what their sources compile to, byte for byte', () => {
  const build = fileURLToPath(new URL('./build.ts', import.meta.url));
  const { status, stdout } = spawnSync(process.execPath, [build, '--check'], { encoding: 'utf8' });
  expect(stdout).toBe(
    'kernels-plain.wasm: matches kernels.c\nkernels-fma.wasm: matches kernels.c\ndelta.wasm: matches delta.c\n',
  );
  expect(status).toBe(0);
});
