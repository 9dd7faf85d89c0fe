/**
 * The table of rooms, enforced: who may import whom inside `src/`. Reads every import from the syntax tree, in all its
 * forms (import, export from, import(), types, worker URLs), tests included; a test that needs more rooms than its
 * own may import lives in `test/`. CONTRIBUTING.md prints the same table, and this file holds it to that.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { isBuiltin } from 'node:module';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Lang, parse } from '@ast-grep/napi';
import { describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));

const LIBRARY_ROOMS = ['domain', 'reward', 'code', 'tensor', 'model', 'sync', 'serve', 'train', 'tasks', 'agent'];

const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  domain: [],
  reward: ['domain'],
  code: ['domain'],
  tensor: ['domain'],
  model: ['domain', 'tensor'],
  sync: ['domain', 'tensor'],
  serve: ['domain', 'tensor', 'model', 'sync'],
  train: ['domain', 'tensor', 'model', 'sync'],
  tasks: ['domain', 'code'],
  agent: ['domain', 'code'],
  rollout: ['domain', 'reward', 'serve', 'tasks', 'agent'],
  eval: ['domain', 'reward', 'rollout', 'tasks', 'agent', 'serve'],
  frontier: ['domain', 'reward', 'eval'],
  run: [...LIBRARY_ROOMS, 'rollout', 'eval', 'frontier'],
  cli: [...LIBRARY_ROOMS, 'rollout', 'eval', 'frontier', 'run'],
};

interface SourceFile {
  /** Path from the repository's root, with forward slashes. */
  readonly path: string;
  readonly text: string;
}

function importedSpecifiers(text: string): string[] {
  const tree = parse(Lang.TypeScript, text).root();
  const sources = tree.findAll({
    rule: {
      regex: '^[\'"`]',
      any: [
        { inside: { kind: 'import_statement', stopBy: 'neighbor' } },
        { inside: { kind: 'export_statement', field: 'source', stopBy: 'neighbor' } },
        {
          inside: {
            kind: 'arguments',
            inside: { kind: 'call_expression', has: { field: 'function', kind: 'import' } },
          },
        },
        { inside: { kind: 'arguments', has: { pattern: 'import.meta.url' }, inside: { kind: 'new_expression' } } },
      ],
    },
  });
  return sources.map((source) => source.text().slice(1, -1));
}

/** The room that a path under `src/` is in; undefined for `src/index.ts`, which stands above all rooms. */
const roomOf = (path: string): string | undefined => /^src\/([^/]+)\//.exec(path)?.[1];

/** Not part of the package, so free to import development dependencies and what `test/` shares. */
const isTestCode = (path: string): boolean => /(\.test|\.fixture|-conformance)\.ts$/.test(path);

/** One sentence a breach: the file, the import, what its room may import. */
function findBreaches({ path, text }: SourceFile, runtimePackages: ReadonlySet<string>): string[] {
  const room = roomOf(path);
  const allowed = room === undefined ? Object.keys(MAY_IMPORT) : MAY_IMPORT[room];
  if (allowed === undefined) return [`${path}: "${room}" is not a room; add it to the table or move the file.`];
  const breaches: string[] = [];
  for (const specifier of importedSpecifiers(text)) {
    if (specifier.startsWith('.')) {
      const target = join(dirname(path), specifier).split(sep).join('/');
      const targetRoom = roomOf(target);
      const isData = !/\.[cm]?[jt]s$/.test(target);
      const isTestSupport = isTestCode(path) && target.startsWith('test/');
      if (targetRoom === undefined ? isData || isTestSupport : targetRoom === room || allowed.includes(targetRoom))
        continue;
      breaches.push(`${path} imports ${specifier}: ${room ?? 'src'}/ may import ${allowed.join(', ') || 'no room'}.`);
    } else if (!isBuiltin(specifier) && !isTestCode(path)) {
      const name = specifier
        .split('/')
        .slice(0, specifier.startsWith('@') ? 2 : 1)
        .join('/');
      if (!runtimePackages.has(name)) breaches.push(`${path} imports ${name}, which is not a runtime dependency.`);
    }
  }
  return breaches;
}

function readSourceFiles(): SourceFile[] {
  return readdirSync(join(root, 'src'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
    .map((entry) => join(entry.parentPath, entry.name))
    .map((file) => ({ path: relative(root, file).split(sep).join('/'), text: readFileSync(file, 'utf8') }));
}

function readRuntimePackages(): Set<string> {
  // The file is npm's own format; only the names under "dependencies" are read.
  const { dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    dependencies: Record<string, string>;
  };
  return new Set(Object.keys(dependencies));
}

describe('rooms', () => {
  const files = readSourceFiles();
  const runtimePackages = readRuntimePackages();

  it('import only the rooms of their line, and only runtime dependencies', () => {
    expect(files.length).toBeGreaterThan(0);
    expect(files.flatMap((file) => findBreaches(file, runtimePackages))).toEqual([]);
  });

  it('have no barrel files', () => {
    const reExportsAll = (text: string): boolean =>
      parse(Lang.TypeScript, text)
        .root()
        .find({ rule: { kind: 'export_statement', regex: '^export\\s*\\*' } }) !== null;
    const barrels = files.filter(
      ({ path, text }) => path !== 'src/index.ts' && (path.endsWith('/index.ts') || reExportsAll(text)),
    );
    expect(barrels.map(({ path }) => path)).toEqual([]);
  });

  it.each([
    ["import { train } from '../train/loop.ts';"],
    ["import type { Train } from '../train/loop.ts';"],
    ["import '../train/loop.ts';"],
    ["export { train } from '../train/loop.ts';"],
    ["export * from '../train/loop.ts';"],
    ["const loop = await import('../train/loop.ts');"],
    ["type Train = import('../train/loop.ts').Train;"],
    ["new Worker(new URL('../train/loop.ts', import.meta.url));"],
    ['new Worker(new URL(`../train/loop.ts`, import.meta.url));'],
  ])('a breach is found in `%s`', (text) => {
    expect(findBreaches({ path: 'src/reward/planted.ts', text }, runtimePackages)).toEqual([
      'src/reward/planted.ts imports ../train/loop.ts: reward/ may import domain.',
    ]);
    expect(findBreaches({ path: 'src/run/planted.ts', text }, runtimePackages)).toEqual([]);
  });

  it.each([
    [
      'src/reward/planted.ts',
      "import { z } from 'left-pad/sub';",
      'src/reward/planted.ts imports left-pad, which is not a runtime dependency.',
    ],
    [
      'src/helpers/planted.ts',
      '',
      'src/helpers/planted.ts: "helpers" is not a room; add it to the table or move the file.',
    ],
    [
      'src/domain/planted.ts',
      "import '../../bench/engine.ts';",
      'src/domain/planted.ts imports ../../bench/engine.ts: domain/ may import no room.',
    ],
  ])('%s holding `%s` is refused', (path, text, breach) => {
    expect(findBreaches({ path, text }, runtimePackages)).toEqual([breach]);
  });

  it('a string that only looks like an import is none', () => {
    const text = "const text = \"import '../train/loop.ts'\"; // import '../train/loop.ts'";
    expect(findBreaches({ path: 'src/reward/planted.ts', text }, runtimePackages)).toEqual([]);
  });

  it('are the ones that CONTRIBUTING.md lists', () => {
    const rows = readFileSync(join(root, 'CONTRIBUTING.md'), 'utf8').matchAll(/^\| *`(\w+)\/` *\|[^|]+\|([^|]+)\|$/gm);
    const documented = Object.fromEntries([...rows].map((row) => [row[1], (row[2] ?? '').trim()]));
    const enforced = Object.entries(MAY_IMPORT).map(([room, allowed]) => {
      if (allowed.length === 0) return [room, '—'];
      return [room, room === 'run' || room === 'cli' ? 'all above' : allowed.join(', ')];
    });
    expect(documented).toEqual(Object.fromEntries(enforced));
  });
});
