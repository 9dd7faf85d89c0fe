import { expect, test } from 'vitest';

import { type Declaration, readDeclarations } from './declarations.ts';
import { collectIndexData, createPackageIndex, type PackageIndex } from './package-index.ts';
import { type Language, parseSource } from './syntax-tree.ts';

function indexOf(files: Readonly<Record<string, string>>, language: Language = 'javascript'): PackageIndex {
  const read = Object.entries(files).map(
    ([path, text]) => [path, readDeclarations({ path, language, text }, parseSource(text, language))] as const,
  );
  return createPackageIndex(collectIndexData(new Map(read)));
}

const only = (index: PackageIndex, name: string): Declaration => {
  const [declaration] = index.declarationsOf(name);
  if (declaration === undefined) throw new Error(`${name} is not declared`);
  return declaration;
};

test('functions, methods and classes with their parameters', () => {
  const index = indexOf({
    'a.js': `async function open(path, { mode }, flags = 3, ...rest) {}
class Cache extends Map {
  #size = 0
  constructor(limit) { super(); }
  async load(key) { return fetch(key) }
  get isFull() { return true }
}
Cache.prototype.drop = function (key) {}
exports.close = (file) => 1`,
  });
  expect(only(index, 'open')).toMatchObject({
    kind: 'function',
    isAsync: true,
    parameters: ['path', '{}', 'flags', '...rest'],
    line: 1,
  });
  expect(only(index, 'Cache')).toMatchObject({
    kind: 'class',
    parameters: ['limit'],
    members: ['size', 'constructor', 'load', 'isFull'],
  });
  expect(only(index, 'load')).toMatchObject({ kind: 'method', isAsync: true, container: 'Cache', line: 5 });
  expect(only(index, 'drop')).toMatchObject({
    kind: 'method',
    isAsync: false,
    container: 'Cache',
    parameters: ['key'],
  });
  expect(only(index, 'isFull').kind).toBe('property');
  expect(only(index, 'close').parameters).toEqual(['file']);
});

test('what certainly gives no promise is told from what may', () => {
  const index = indexOf({
    'a.js':
      'function plain(a) { return a + 1 }\nfunction nothing() { plain() }\nfunction maybe() { return other() }\nfunction made() { return new Promise(done) }',
  });
  expect(only(index, 'plain').mayReturnPromise).toBeUndefined();
  expect(only(index, 'nothing').mayReturnPromise).toBeUndefined();
  expect(only(index, 'maybe').mayReturnPromise).toBe(true);
  expect(only(index, 'made').isAsync).toBe(true);
});

test('defaults come from constants, fields, parameters and documentation', () => {
  const index = indexOf({
    'a.js': `const LIMIT = 100
let counter = 0
class Client {
  /** Milliseconds to wait. Defaults to 250. */
  delay
  retries = 3
}
/**
 * Connects.
 * @param {object} options
 * @param {number} [options.timeout=5000] how long
 * @param {boolean} options.keepAlive whether to keep it (default: true)
 */
function connect(options, port = 80) {}`,
  });
  expect(only(index, 'LIMIT').value).toBe('100');
  expect(only(index, 'counter').value).toBeUndefined();
  expect(only(index, 'delay')).toMatchObject({ value: '250', doc: 'Milliseconds to wait. Defaults to 250.' });
  expect(only(index, 'retries').value).toBe('3');
  expect(only(index, 'timeout')).toMatchObject({ value: '5000', container: 'connect' });
  expect(only(index, 'keepAlive').value).toBe('true');
  expect(only(index, 'port').value).toBe('80');
  expect(only(index, 'connect').doc).toBe('Connects.');
});

test('TypeScript: members of interfaces, promised results, parameters', () => {
  const index = indexOf(
    {
      'a.ts':
        'export interface Options { readonly timeout?: number; run(job: string): Promise<void>; }\nexport abstract class Store { private limit: number = 5; read(key: string, limit?: number): Promise<string> { return get(key); } }',
    },
    'typescript',
  );
  expect(only(index, 'timeout')).toMatchObject({ kind: 'property', container: 'Options' });
  expect(only(index, 'run')).toMatchObject({ kind: 'method', isAsync: true, parameters: ['job'] });
  expect(only(index, 'read')).toMatchObject({ container: 'Store', isAsync: true, parameters: ['key', 'limit'] });
  expect(only(index, 'limit').value).toBe('5');
});

test('a look-up prefers the class, then the import, then the file', () => {
  const index = indexOf({
    'lib/a.js': 'class A {\n  open() {}\n  run() {\n    this.open()\n    open()\n  }\n}\nfunction open() {}',
    'lib/b.js': 'class B {\n  open(flag) {}\n}',
    'lib/c.js': "const { open: start } = require('./a')\nconst tools = require('./b.js')\nstart()",
  });
  expect(index.lookUp('open', { file: 'lib/a.js', line: 4, receiver: 'this' })).toMatchObject({
    container: 'A',
    line: 2,
  });
  expect(index.lookUp('open', { file: 'lib/a.js', line: 5 })).toMatchObject({ kind: 'function', line: 8 });
  expect(index.lookUp('start', { file: 'lib/c.js', line: 3 })).toMatchObject({ name: 'open', file: 'lib/a.js' });
  expect(index.lookUp('open', { file: 'lib/c.js', line: 3, receiver: 'tools' })).toMatchObject({ file: 'lib/b.js' });
  expect(index.lookUp('absent', { file: 'lib/a.js', line: 1 })).toBeUndefined();
});
