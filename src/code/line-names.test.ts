import { expect, test } from 'vitest';

import { namesOnLine, receiverOnLine } from './line-names.ts';

const first = (before: string, after: string): string | undefined => namesOnLine({ before, after })[0];

test('reordered arguments are judged by the function that they are given to', () => {
  expect(first('  copy(this.source, this.target)', '  copy(this.target, this.source)')).toBe('copy');
  expect(first('  outer(inner(a, b), c)', '  outer(inner(b, a), c)')).toBe('inner');
});

test('a lost or gained await is judged by what is called', () => {
  expect(first('  const x = await this.store.open(path)', '  const x = this.store.open(path)')).toBe('open');
  expect(first('  flush()', '  await flush()')).toBe('flush');
});

test('a new property comes first, whichever way the edit went', () => {
  expect(first('if (this.isOpen && x) {', 'if (this.isLive && x) {')).toBe('isLive');
  expect(first('if (this.isLive && x) {', 'if (this.isOpen && x) {')).toBe('isOpen');
});

test('a changed literal is judged by the name that it is given to', () => {
  expect(first('  this.timeout = options.timeout ?? 5000', '  this.timeout = options.timeout ?? 500')).toBe('timeout');
  expect(first('  wait(5000 /* MAX_WAIT */)', '  wait(50 /* MAX_WAIT */)')).toBe('MAX_WAIT');
  expect(first('  port: 80,', '  port: 8080,')).toBe('port');
});

test('no more than three names, no keywords, each once', () => {
  const names = namesOnLine({ before: 'return a.b(c.d, e.f, g.h)', after: 'return a.b(c.d, e.f, g.h, c.d)' });
  expect(names).toHaveLength(3);
  expect(new Set(names).size).toBe(3);
  expect(namesOnLine({ before: 'return x', after: 'return !x' })).toEqual([]);
});

test('the receiver is what stands before the dot', () => {
  expect(receiverOnLine('await this.open(x)', 'open')).toBe('this');
  expect(receiverOnLine('client?.open(x)', 'open')).toBe('client');
  expect(receiverOnLine('open(x)', 'open')).toBeUndefined();
  expect(receiverOnLine('list[0].open(x)', 'open')).toBe('?');
});
