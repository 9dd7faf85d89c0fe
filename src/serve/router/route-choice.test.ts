import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { BREAKER_OPTIONS, CircuitBreaker } from './circuit-breaker.ts';
import { BLOCK_TOKENS, PrefixIndex, hashBlocks } from './prefix-index.ts';
import { chooseRoute, routeCost } from './route-choice.ts';
import type { RouteCandidate, RouteRequest } from './route-choice.ts';

const candidate = (id: string, more: Partial<RouteCandidate> = {}): RouteCandidate => ({
  id,
  health: 'HEALTHY',
  isOpen: true,
  version: 5,
  load: 0,
  slots: 4,
  mostLoad: 8,
  cachedTokens: 0,
  ...more,
});
const request = (more: Partial<RouteRequest> = {}): RouteRequest => ({
  key: 'k',
  promptTokens: 1024,
  tried: new Set(),
  ...more,
});
const chosen = (candidates: RouteCandidate[], more: Partial<RouteRequest> = {}): string => {
  const choice = chooseRoute(candidates, request(more));
  return choice.kind === 'replica' ? choice.id + (choice.isCertain ? '' : '?') : choice.kind;
};

describe('the choice', () => {
  test('least load; a cached prefix is worth the requests that its tokens cost', () => {
    expect(chosen([candidate('a', { load: 2 }), candidate('b', { load: 1 })])).toBe('b');
    expect(chosen([candidate('a', { load: 2, cachedTokens: 1024 }), candidate('b', { load: 1 })])).toBe('a');
    expect(chosen([candidate('a', { load: 4, cachedTokens: 1024 }), candidate('b', { load: 1 })])).toBe('b');
  });

  test('the session’s replica first, while it is healthy, has room and serves the version', () => {
    const more = { session: { replica: 'a', version: 5 } };
    expect(chosen([candidate('a', { load: 7 }), candidate('b')], more)).toBe('a');
    expect(chosen([candidate('a', { health: 'SUSPECT' }), candidate('b')], more)).toBe('b');
    expect(chosen([candidate('a', { load: 8 }), candidate('b')], more)).toBe('b');
    expect(chosen([candidate('a'), candidate('b', { version: 6 })], { ...more, minVersion: 6 })).toBe('b');
  });

  test('a session that lost its replica meets no older weights where there is a choice', () => {
    const more = { session: { replica: 'gone', version: 5 } };
    expect(chosen([candidate('a', { version: 4 }), candidate('b', { load: 3 })], more)).toBe('b');
    expect(chosen([candidate('a', { version: 4 })], more)).toBe('a');
  });

  test('suspects serve where nobody else can; others never', () => {
    expect(chosen([candidate('a', { health: 'SUSPECT' }), candidate('b', { load: 3 })])).toBe('b');
    expect(chosen([candidate('a', { health: 'SUSPECT' })])).toBe('a');
    for (const health of ['DEAD', 'RESTARTING', 'STALE', 'RETIRED'] as const)
      expect(chosen([candidate('a', { health })])).toBe('none');
    expect(chosen([candidate('a', { isOpen: false })])).toBe('none');
    expect(chosen([candidate('a')], { tried: new Set(['a']) })).toBe('none');
  });

  test('versions: one that may have come to it meanwhile is asked, one that is past an exact one never', () => {
    expect(chosen([candidate('a'), candidate('b', { version: 3 })], { minVersion: 6 })).toBe('a?');
    expect(chosen([candidate('a'), candidate('b', { version: 3 })], { exactVersion: 3 })).toBe('b');
    expect(chosen([candidate('a')], { exactVersion: 3 })).toBe('version');
    expect(chosen([candidate('a', { load: 8 })])).toBe('full');
  });

  test('ties: equal replicas share equally, and the same request goes to the same one', () => {
    const counts = new Map<string, number>();
    for (let index = 0; index < 3_000; index++) {
      const id = chosen([candidate('a'), candidate('b'), candidate('c')], { key: `request-${index}` });
      expect(chosen([candidate('c'), candidate('b'), candidate('a')], { key: `request-${index}` })).toBe(id);
      counts.set(id, (counts.get(id) ?? 0) + 1);
    }
    for (const count of counts.values()) expect(count).toBeGreaterThan(850);
  });

  test('random fleets: what is chosen may serve, and no healthy one would be cheaper', () => {
    const one = fc.record({
      health: fc.constantFrom('HEALTHY', 'SUSPECT', 'DEAD', 'STALE'),
      isOpen: fc.boolean(),
      version: fc.nat(3),
      load: fc.nat(9),
      cachedTokens: fc.nat(1024),
    });
    fc.assert(
      fc.property(fc.array(one, { maxLength: 6 }), fc.nat(3), (fields, minVersion) => {
        const all = fields.map((field, index) => candidate(`r${index}`, field as Partial<RouteCandidate>));
        const choice = chooseRoute(all, request({ minVersion }));
        if (choice.kind !== 'replica' || !choice.isCertain) return;
        const found = all.find(({ id }) => id === choice.id);
        expect(found?.isOpen === true && found.version >= minVersion && found.load < found.mostLoad).toBe(true);
        const healthy = all.filter((c) => c.health === 'HEALTHY' && c.isOpen && c.version >= minVersion && c.load < 8);
        expect(found?.health).toBe(healthy.length > 0 ? 'HEALTHY' : 'SUSPECT');
        for (const other of healthy)
          expect(routeCost(other, 1024)).toBeGreaterThanOrEqual(routeCost(found ?? other, 1024));
      }),
    );
  });
});

describe('prefixes', () => {
  const prompt = (length: number, seed = 1): Int32Array => Int32Array.from({ length }, (_, index) => index * seed);

  test('whole shared blocks count, up to the first difference, and of one version only', () => {
    const index = new PrefixIndex();
    index.add(hashBlocks(prompt(300)), 4);
    const longer = prompt(500);
    expect(index.cachedTokens(hashBlocks(longer), 4)).toBe(4 * BLOCK_TOKENS);
    longer[BLOCK_TOKENS + 1] = 9_999;
    expect(index.cachedTokens(hashBlocks(longer), 4)).toBe(BLOCK_TOKENS);
    expect(index.cachedTokens(hashBlocks(prompt(300)), 5)).toBe(0);
    index.add(hashBlocks(prompt(128, 3)), 5);
    expect(index.cachedTokens(hashBlocks(prompt(300)), 5)).toBe(0);
  });

  test('bounded: what was used longest ago goes, ends before beginnings', () => {
    const index = new PrefixIndex(4);
    index.add(hashBlocks(prompt(4 * BLOCK_TOKENS)), 1);
    index.add(hashBlocks(prompt(2 * BLOCK_TOKENS, 7)), 1);
    expect(index.size).toBe(4);
    expect(index.cachedTokens(hashBlocks(prompt(4 * BLOCK_TOKENS)), 1)).toBe(2 * BLOCK_TOKENS);
  });
});

test('the breaker opens after failures within the window, lets one trial through, and rests longer after each that fails', () => {
  const breaker = new CircuitBreaker();
  const { failures, windowMs, restMs } = BREAKER_OPTIONS;
  for (let index = 0; index < failures; index++) breaker.failed(index * windowMs);
  expect(breaker.state(failures * windowMs)).toBe('closed');
  const start = 1e6;
  for (let index = 0; index < failures; index++) breaker.failed(start);
  expect(breaker.allows(start + restMs - 1)).toBe(false);
  expect(breaker.allows(start + restMs)).toBe(true);
  breaker.admit(start + restMs);
  expect(breaker.allows(start + restMs)).toBe(false);
  breaker.failed(start + restMs);
  expect(breaker.allows(start + 3 * restMs - 1)).toBe(false);
  breaker.admit(start + 3 * restMs);
  breaker.succeeded();
  expect(breaker.state(start + 3 * restMs)).toBe('closed');
});
