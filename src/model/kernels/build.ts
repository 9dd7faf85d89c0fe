/**
 * Builds the two wasm files from kernels.c: `node src/model/kernels/build.ts`; with `--check` it builds into a
 * temporary folder and compares byte for byte. The same clang gives the same bytes, so a committed file can be verified.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const FLAGS = [
  '--target=wasm32',
  '-O3',
  '-msimd128',
  '-mbulk-memory',
  '-matomics',
  '-mmutable-globals',
  '-ffreestanding',
  '-fno-builtin',
  '-ffp-contract=off',
  '-nostdlib',
  '-Wall',
  '-Werror',
  '-Wl,--no-entry,--import-memory,--shared-memory,--max-memory=4294967296,--no-check-features,--strip-all',
  '-Wl,--export=__stack_pointer,--export=__heap_base',
];
const BUILDS = {
  plain: [],
  fma: ['-mrelaxed-simd', '-DFUSED'],
} as const;

function compile(folder: string): void {
  for (const [name, flags] of Object.entries(BUILDS))
    execFileSync('clang-16', [...FLAGS, ...flags, 'kernels.c', '-o', join(folder, `kernels-${name}.wasm`)], {
      cwd: import.meta.dirname,
      stdio: 'inherit',
    });
}

function check(): boolean {
  const folder = mkdtempSync(join(tmpdir(), 'hone-kernels-'));
  try {
    compile(folder);
    return Object.keys(BUILDS).every((name) => {
      const file = `kernels-${name}.wasm`;
      const same = readFileSync(join(folder, file)).equals(readFileSync(join(import.meta.dirname, file)));
      console.log(`${file}: ${same ? 'matches kernels.c' : 'differs from kernels.c; run npm run build:wasm'}`);
      return same;
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

if (process.argv.includes('--check')) process.exitCode = check() ? 0 : 1;
else compile(import.meta.dirname);
