import { expect, test } from 'vitest';

import { readDeclarations } from '../code/declarations.ts';
import { findFunctions } from '../code/functions.ts';
import { collectIndexData, createPackageIndex, type PackageIndex } from '../code/package-index.ts';
import { LineMap, parseSource } from '../code/syntax-tree.ts';
import { createRandom } from '../domain/ids.ts';
import { collectBenignSites } from './benign-sites.ts';
import { collectElsewhereSites } from './elsewhere-sites.ts';
import { collectGuardSites } from './guard-sites.ts';
import { InventedNames } from './invented-names.ts';
import { collectLocalSites } from './local-sites.ts';
import type { Site, SiteKind } from './site.ts';
import { SiteCollector } from './site-collector.ts';
import { collectVariableSites } from './variable-sites.ts';

function collect(text: string, fill: (collector: SiteCollector, index: PackageIndex) => void): Site[] {
  const file = { path: 'a.js', language: 'javascript', text } as const;
  const root = parseSource(text, 'javascript');
  const index = createPackageIndex(collectIndexData(new Map([['a.js', readDeclarations(file, root)]])));
  const source = findFunctions(file, root, new LineMap(text)).at(-1);
  if (source === undefined) throw new Error('the text holds no function of five lines');
  const collector = new SiteCollector(source, text);
  fill(collector, index);
  return collector.sites();
}

const inFunction = (body: string): string => `function run(list, options, limit) {\n\n\n${body}\n}`;

/** right → wrong (or = same) of each site of a kind. */
const shown = (sites: readonly Site[], kind: SiteKind): string[] =>
  sites
    .filter((site) => site.kind === kind)
    .map(({ right, wrong, same }) =>
      [right, ...(wrong === undefined ? [] : [`-> ${wrong}`]), ...(same === undefined ? [] : [`= ${same}`])].join(' '),
    )
    .toSorted();

const local = (body: string, kind: SiteKind): string[] => shown(collect(inFunction(body), collectLocalSites), kind);

test.each<[SiteKind, string, string[]]>([
  ['negated-condition', 'if (!list) stop()', ['!list -> list']],
  ['negated-condition', 'if (list.ready) stop()', ['list.ready -> !list.ready']],
  ['negated-condition', 'if (list === limit) stop()', ['list === limit -> list !== limit = limit === list']],
  [
    'wrong-comparison',
    'const small = limit <= options.max',
    ['limit <= options.max -> limit < options.max = options.max >= limit'],
  ],
  ['wrong-logic', 'if (list && limit) stop()', ['list && limit -> list || limit = limit && list']],
  ['wrong-logic', 'const a = list.next() || limit', ['list.next() || limit -> list.next() && limit']],
  ['wrong-arithmetic', 'limit = limit * 2', ['limit * 2 -> limit / 2 = 2 * limit']],
  ['wrong-arithmetic', 'limit++', ['limit++ -> limit-- = limit += 1']],
  ['off-by-one', 'return list[limit - 1]', ['limit - 1 -> limit']],
  [
    'off-by-one',
    'for (let i = limit; i < list.length; i++) stop(i)',
    ['i < list.length -> i <= list.length = list.length > i'],
  ],
  ['wrong-boolean', 'stop(true)', ['true -> false']],
  ['wrong-method', 'list.push(limit)', ['push -> unshift']],
  ['wrong-method', 'list.map(stop)', ['map = forEach']],
  [
    'wrong-method',
    'const has = list.indexOf(limit) !== -1',
    ['indexOf -> lastIndexOf', 'list.indexOf(limit) !== -1 -> list.startsWith(limit) = list.includes(limit)'],
  ],
  [
    'swapped-operands',
    'return limit ? list : options',
    ['limit ? list : options -> limit ? options : list = !limit ? options : list'],
  ],
  ['missing-return', 'return list.close()', ['return list.close() -> list.close()']],
])('%s: %s', (kind, body, expected) => {
  expect(local(body, kind)).toEqual(expected);
});

test('a text that may be joined is not taken for a sum, and calls are not exchanged', () => {
  expect(local("const name = 'a' + list", 'wrong-arithmetic')).toEqual([]);
  expect(local('if (list.next() === limit.next()) stop()', 'negated-condition')).toEqual([
    'list.next() === limit.next() -> list.next() !== limit.next()',
  ]);
  expect(local('if (list && list.first) stop()', 'wrong-logic')).toEqual(['list && list.first -> list || list.first']);
});

test('guards that protect are told from guards that add nothing', () => {
  const guards = (body: string): string[] => shown(collect(inFunction(body), collectGuardSites), 'missing-guard');
  expect(guards('if (list && list.length) stop()')).toEqual(['list && list.length -> list.length']);
  expect(guards('return list?.first')).toEqual(['?. -> .']);
  expect(guards('options = options || {}')).toEqual(['options || {} -> options']);
  expect(guards("if (list && typeof list === 'string') stop()")).toEqual([
    "list && typeof list === 'string' = typeof list === 'string'",
  ]);
  expect(guards("if (typeof list === 'string') stop()")).toEqual([
    "typeof list === 'string' = list && typeof list === 'string'",
  ]);
});

test('a variable gives way only to one that is in scope', () => {
  const wrong = collect(inFunction('{ const inner = 1 }\nstop(list)\nconst later = 2'), collectVariableSites).map(
    (site) => site.wrong,
  );
  expect(wrong).toHaveLength(1);
  expect(['options', 'limit']).toContain(wrong[0]);
});

test('benign rewrites keep the meaning', () => {
  const benign = (body: string, kind: SiteKind): string[] => shown(collect(inFunction(body), collectBenignSites), kind);
  expect(benign("stop('a')", 'quotes')).toEqual([`'a' = "a"`]);
  expect(benign("stop('a: ' + list)", 'template')).toEqual(["'a: ' + list = `a: ${list}`"]);
  expect(benign('// Close the list\nstop()', 'comment')).toEqual(['// Close the list = // close the list.']);
  expect(benign('const res = list.first\nstop(res)', 'rename')).toEqual(['list = items', 'res = response']);
  expect(benign('const res = list.first\nstop({ res })', 'rename')).toEqual(['list = items']);
});

const PACKAGE = `const MAX_ITEMS = 40
function copy(source, target) { source.pipe(target) }
async function flush(list) { await list.end() }
function note(text) { text.length }
class Store { itemCount; openStream() {} }
async function run(source, target, store) {
  copy(source, target)
  await flush(store)
  note(store)
  const total = store.itemCount
  return total > MAX_ITEMS
}
`;

function elsewhere(text: string, parameters: readonly string[] = []): Site[] {
  return collect(text, (collector, index) => {
    const used = new Set(text.match(/[\w$]+/gu));
    const invented = new InventedNames(used, ['itemCount', 'openStream', 'streamSize', 'closeItem']);
    collectElsewhereSites(collector, {
      file: 'a.js',
      index,
      invented,
      strings: [],
      random: createRandom(1),
      shadowed: new Set(),
      parameters: new Set(parameters),
    });
  });
}

test('elsewhere kinds are decided by declarations outside the function', () => {
  const sites = elsewhere(PACKAGE);
  expect(shown(sites, 'swapped-arguments')).toEqual(['source, target -> target, source']);
  expect(shown(sites, 'missing-await')).toEqual(['await flush -> flush', 'copy = await copy', 'note = await note']);
  expect(sites.find(({ kind }) => kind === 'missing-await')?.evidence).toMatchObject({ file: 'a.js' });
  const [property] = sites.filter(({ kind }) => kind === 'unknown-property');
  expect(property?.right).toBe('itemCount');
  expect(PACKAGE).not.toContain(String(property?.wrong));
  const [constant] = sites.filter(({ kind }) => kind === 'contradicted-constant');
  expect(constant).toMatchObject({
    right: '40 /* MAX_ITEMS */',
    same: 'MAX_ITEMS',
    evidence: { name: 'MAX_ITEMS', line: 1 },
  });
  expect(constant?.wrong).toMatch(/^\d+ \/\* MAX_ITEMS \*\/$/u);
});

test('a call of a parameter is not a call of what the package declares under its name', () => {
  const sites = elsewhere(PACKAGE, ['copy', 'flush', 'note']);
  expect(shown(sites, 'swapped-arguments')).toEqual([]);
  expect(shown(sites, 'missing-await')).toEqual([]);
});

test('without the declarations there is nothing to decide', () => {
  const alone = PACKAGE.split('\n').slice(5).join('\n');
  expect(elsewhere(alone)).toEqual([]);
});
