/**
 * Which files of an installed npm package are its readable source: hand-written or plainly compiled, not minified, not
 * bundled, not tests. Invariant: the same installed files give the same list, in the same order, on every machine.
 */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

import type { Language } from './syntax-tree.ts';

export interface SourceFile {
  /** Inside the package, forward slashes. */
  readonly path: string;
  readonly language: Language;
  readonly text: string;
}

const SKIPPED_DIRECTORY =
  /^(node_modules|tests?|__tests__|specs?|fixtures?|examples?|bench(marks?)?|docs?|locales?|i18n|vendor|third[_-]party|umd|amd|min|flow-typed|typings|types|bin|scripts|tools|coverage|generated|website|demo)$/iu;
const SKIPPED_FILE = /(\.min|\.test|\.spec|\.bundle|\.umd|-min|\.config|\.d)\.[cm]?[jt]s$/iu;
const SOURCE_FILE = /\.(js|mjs|cjs|ts|mts|cts)$/u;
/** When a package ships the same code twice, the first of these wins. */
const BUILD_FLAVOURS: readonly ReadonlySet<string>[] = [
  new Set(['src', 'source']),
  new Set(['esm', 'es', 'module', 'mjs', 'esm2020', 'es6', 'es2015', 'esnext']),
  new Set(['lib', 'dist', 'cjs', 'commonjs', 'build', 'out', 'esm5']),
];
const MAX_FILE_BYTES = 256 * 1024;
const MAX_PACKAGE_BYTES = 1536 * 1024;
const MAX_LINE_CHARACTERS = 400;
const MAX_MEAN_LINE_CHARACTERS = 80;

export function readSourceFiles(packageDirectory: string): SourceFile[] {
  const paths = preferOneFlavour(listFiles(packageDirectory, ''));
  const files: SourceFile[] = [];
  let totalBytes = 0;
  for (const path of paths) {
    const absolute = join(packageDirectory, path);
    const { size } = statSync(absolute);
    if (size === 0 || size > MAX_FILE_BYTES) continue;
    if (totalBytes + size > MAX_PACKAGE_BYTES) break;
    const text = readFileSync(absolute, 'utf8');
    if (!isReadable(text)) continue;
    totalBytes += size;
    files.push({ path, language: /ts$/u.test(path) ? 'typescript' : 'javascript', text });
  }
  return files;
}

function listFiles(root: string, relative: string): string[] {
  const found: string[] = [];
  const entries = readdirSync(join(root, relative), { withFileTypes: true });
  entries.sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const entry of entries) {
    const path = relative === '' ? entry.name : `${relative}/${entry.name}`;
    if (entry.isDirectory()) {
      if (!SKIPPED_DIRECTORY.test(entry.name) && !entry.name.startsWith('.')) found.push(...listFiles(root, path));
    } else if (entry.isFile() && SOURCE_FILE.test(entry.name) && !SKIPPED_FILE.test(entry.name)) found.push(path);
  }
  return found;
}

/** A package with `src/` and `dist/`, or `esm/` and `cjs/`, holds its code twice: keep the flavour nearest to the author. */
function preferOneFlavour(paths: readonly string[]): string[] {
  const rankOf = (path: string): number => {
    const folders = path.split('/').slice(0, -1);
    for (let depth = folders.length - 1; depth >= 0; depth--) {
      const rank = BUILD_FLAVOURS.findIndex((names) => names.has(folders[depth] ?? ''));
      if (rank !== -1) return rank;
    }
    return BUILD_FLAVOURS.length;
  };
  const counts = new Map<number, number>();
  for (const path of paths) counts.set(rankOf(path), (counts.get(rankOf(path)) ?? 0) + 1);
  const last = BUILD_FLAVOURS.length - 1;
  for (let rank = 0; rank <= last; rank++) {
    if ((counts.get(rank) ?? 0) * 4 < paths.length) continue;
    // Beside `lib/` the files at the root are of the same making; beside `src/` they may be built from it.
    return paths.filter((path) => rankOf(path) === rank || (rank === last && rankOf(path) > last));
  }
  return [...paths];
}

function isReadable(text: string): boolean {
  if (text.includes('\r') || text.includes('\u0000')) return false;
  let lines = 0;
  let start = 0;
  while (start < text.length) {
    const end = text.indexOf('\n', start);
    const stop = end === -1 ? text.length : end;
    if (stop - start > MAX_LINE_CHARACTERS) return false;
    lines++;
    start = stop + 1;
  }
  return text.length / lines <= MAX_MEAN_LINE_CHARACTERS;
}
