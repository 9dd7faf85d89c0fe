/**
 * Builds the wasm files from their C sources: `node src/model/kernels/build.ts`; with `--check` it builds into a
 * temporary folder and compares byte for byte. The same clang gives the same bytes, so a committed file can be verified.
 * Covers the engine's kernels beside it and the delta codec's in the sync room.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

interface Build {
  readonly folder: string;
  readonly source: string;
  readonly output: string;
  readonly flags: readonly string[];
}

const FLAGS = [
  '--target=wasm32',
  '-O3',
  '-msimd128',
  '-mbulk-memory',
  '-mmutable-globals',
  '-ffreestanding',
  '-fno-builtin',
  '-ffp-contract=off',
  '-nostdlib',
  '-Wall',
  '-Werror',
  '-Wl,--no-entry,--no-check-features,--strip-all',
];
/** The engine's threads share one memory, which the module imports. */
const SHARED_MEMORY = [
  '-matomics',
  '-Wl,--import-memory,--shared-memory,--max-memory=4294967296',
  '-Wl,--export=__stack_pointer,--export=__heap_base',
];
const engine = { folder: import.meta.dirname, source: 'kernels.c' };
const BUILDS: readonly Build[] = [
  { ...engine, output: 'kernels-plain.wasm', flags: SHARED_MEMORY },
  { ...engine, output: 'kernels-fma.wasm', flags: [...SHARED_MEMORY, '-mrelaxed-simd', '-DFUSED'] },
  {
    folder: join(import.meta.dirname, '../../sync/kernels'),
    source: 'delta.c',
    output: 'delta.wasm',
    flags: [],
  },
];

function compile({ folder, source, flags }: Build, output: string): void {
  execFileSync('clang-16', [...FLAGS, ...flags, source, '-o', output], { cwd: folder, stdio: 'inherit' });
}

function check(): boolean {
  const folder = mkdtempSync(join(tmpdir(), 'hone-kernels-'));
  try {
    return BUILDS.map((build) => {
      const fresh = join(folder, build.output);
      compile(build, fresh);
      const same = readFileSync(fresh).equals(readFileSync(join(build.folder, build.output)));
      const verdict = same ? `matches ${build.source}` : `differs from ${build.source}; run npm run build:wasm`;
      console.log(`${build.output}: ${verdict}`);
      return same;
    }).every(Boolean);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

if (process.argv.includes('--check')) process.exitCode = check() ? 0 : 1;
else for (const build of BUILDS) compile(build, join(build.folder, build.output));
