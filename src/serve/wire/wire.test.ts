import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { policyVersion } from '../../domain/ids.ts';
import { DEFAULT_SAMPLING } from '../../domain/policy.ts';
import { decodeBase64, decodeFloat32, decodeInt32, encodeBase64, writeBase64 } from './base64-array.ts';
import { decodeTokensEvent, EventReader } from './event-reader.ts';
import { EventWriter } from './event-writer.ts';
import { decodeGenerateRequest, encodeGenerateRequest } from './generate-request.ts';
import type { GenerateWireEvent } from './generate-wire.ts';
import { decodeKeptRows, encodeKeptRows } from './kept-set-code.ts';

const int32s = fc.array(fc.integer({ min: -0x80000000, max: 0x7fffffff })).map((list) => Int32Array.from(list));
const keptRow = fc.oneof(
  fc.uniqueArray(fc.integer({ min: 0, max: 0x7fffffff }), { maxLength: 60 }).map((ids) => Int32Array.from(ids).sort()),
  fc.uniqueArray(fc.integer({ min: 0, max: 80 }), { maxLength: 60 }).map((ids) => Int32Array.from(ids).sort()),
  fc.integer({ min: 0, max: 5000 }).map((length) => Int32Array.from({ length }, (_, id) => id)),
);

describe('typed arrays as base64', () => {
  test('every bit comes back, those of NaN with a payload and of -0 too', () => {
    fc.assert(
      fc.property(int32s, (bits) => {
        expect(decodeInt32('x', encodeBase64(bits))).toEqual(bits);
        const back = decodeFloat32('x', encodeBase64(new Float32Array(bits.buffer)));
        expect(new Int32Array(back.buffer)).toEqual(bits);
      }),
    );
  });

  test('written without a string it is the same text', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 50 }), (bytes) => {
        const target = Buffer.alloc(100);
        const end = writeBase64(bytes, bytes.length, target, 3);
        expect(target.toString('latin1', 3, end)).toBe(encodeBase64(bytes));
      }),
    );
  });

  test.each(['A', 'AAA', 'AA A', 'AAAA\n', 'A=AA', '====', 'AA-_', 'AAA*'])('%j is refused', (text) => {
    expect(() => decodeBase64('request.tokens', text)).toThrow(/^request\.tokens is not base64/u);
  });

  test('half an element is refused', () => {
    expect(() => decodeInt32('request.tokens', encodeBase64(new Uint8Array(6)))).toThrow('has 6 bytes');
  });
});

describe('the kept-set code', () => {
  test('gives back exactly the rows', () => {
    fc.assert(
      fc.property(fc.array(keptRow, { maxLength: 8 }), (rows) => {
        expect(decodeKeptRows(encodeKeptRows(rows))).toEqual(rows);
      }),
    );
  });

  test('a row of the whole vocabulary takes a few bytes, a row of forty under a hundred', () => {
    expect(encodeKeptRows([Int32Array.from({ length: 151_936 }, (_, id) => id)]).length).toBeLessThanOrEqual(7);
    expect(encodeKeptRows([Int32Array.from({ length: 40 }, (_, index) => index * 3797)]).length).toBeLessThan(100);
  });

  test('damaged bytes are refused or give other rows, and never more than they may hold', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 40 }), (bytes) => {
        try {
          for (const row of decodeKeptRows(bytes))
            for (const [index, id] of row.entries()) expect(id).toBeGreaterThan(row[index - 1] ?? -1);
        } catch (error) {
          expect(error).toMatchObject({ code: 'engine-failed' });
        }
      }),
    );
    expect(() => decodeKeptRows(encodeKeptRows([Int32Array.of(1, 9, 70)]).subarray(0, 3))).toThrow('break off');
    expect(() => encodeKeptRows([Int32Array.of(4, 2)])).toThrow('id 2 comes after 4');
  });
});

describe('the request', () => {
  const request = {
    tokens: Int32Array.of(1, 2, 3),
    sampling: { ...DEFAULT_SAMPLING, maxTokens: 5, stopIds: [7] },
    seed: 0xffffffff,
  };

  test('round trip, with and without what has a default', () => {
    expect(decodeGenerateRequest(encodeGenerateRequest(request))).toEqual({
      ...request,
      drawnBefore: 0,
      minVersion: undefined,
      exactVersion: undefined,
      session: undefined,
      keptSets: 'inline',
    });
    const whole = {
      ...request,
      drawnBefore: 2,
      minVersion: policyVersion(3),
      exactVersion: policyVersion(4),
      session: 's',
      keptSets: 'store' as const,
    };
    expect(decodeGenerateRequest(Buffer.from(encodeGenerateRequest(whole)))).toEqual(whole);
  });

  // The encoder's own output, read as a bag of fields to break one of.
  const broken = (change: object): string =>
    JSON.stringify({ ...(JSON.parse(encodeGenerateRequest(request)) as object), ...change });
  test.each([
    ['{', 'The body is not JSON'],
    ['[]', 'request is an empty list, must be an object'],
    [broken({ tokens: 7 }), 'request.tokens is 7, must be a string'],
    [broken({ tokens: 'AA=A' }), 'request.tokens is not base64'],
    [broken({ tokens: 'AAA=' }), 'request.tokens has 2 bytes'],
    [broken({ tokens: '' }), 'request.tokens is empty'],
    [broken({ tokens: encodeBase64(Int32Array.of(-5)) }), 'request.tokens has -5'],
    [broken({ seed: 1.5 }), 'request.seed is 1.5'],
    [broken({ seed: -1 }), 'request.seed is -1, must be at least 0'],
    [broken({ drawnBefore: 3 }), 'request.drawnBefore is 3, must be less than the 3 tokens'],
    [broken({ minVersion: 5, exactVersion: 4 }), 'request.exactVersion is 4, must be at least minVersion'],
    [broken({ keptSets: 'never' }), 'request.keptSets is "never", must be "inline" or "store"'],
    [broken({ sampling: { ...request.sampling, topP: 0 } }), 'request.sampling.topP is 0, must be above 0'],
    [broken({ weight: 1 }), 'request has weight, which nothing reads'],
  ])('%s is refused in one sentence', (body, sentence) => {
    expect(() => decodeGenerateRequest(body)).toThrow(sentence);
  });
});

describe('events', () => {
  const writer = new EventWriter(256);
  const token = fc.record({
    id: fc.integer({ min: 0, max: 200_000 }),
    logprob: fc.float({ noNaN: true, noDefaultInfinity: true, max: 0 }),
    others: fc.uniqueArray(fc.integer({ min: 0, max: 200_000 }), { maxLength: 20 }),
  });
  const reply = fc.array(fc.record({ tokens: fc.array(token, { minLength: 1, maxLength: 4 }), version: fc.nat() }));

  test('whatever way the bytes are cut, the same tokens come out, bit by bit', () => {
    fc.assert(
      fc.property(reply, fc.array(fc.integer({ min: 1, max: 40 })), (events, cuts) => {
        const sent = events.map(({ tokens, version }) => ({
          ids: Int32Array.from(tokens, ({ id }) => id),
          logprobs: Float32Array.from(tokens, ({ logprob }) => logprob),
          kept: tokens.map(({ id, others }) => Int32Array.from(new Set([id, ...others])).sort()),
          version: policyVersion(version),
        }));
        const end: GenerateWireEvent = {
          type: 'end',
          finish: 'stop',
          versionStart: policyVersion(1),
          versionEnd: policyVersion(2),
          tokens: 3,
          cachedTokens: 0,
        };
        const bytes = Buffer.concat([
          Buffer.from(': a comment\r\nretry: 5\n\n'),
          ...sent.map((event) => writer.tokens(event, encodeKeptRows(event.kept), event.version)),
          writer.last(end),
        ]);
        const reader = new EventReader();
        const read: GenerateWireEvent[] = [];
        let at = 0;
        for (let turn = 0; at < bytes.length; turn++) {
          const length = cuts[turn % Math.max(1, cuts.length)] ?? bytes.length;
          read.push(...reader.push(bytes.subarray(at, at + length)));
          at += length;
        }
        expect(reader.isBetweenEvents).toBe(true);
        expect(read.at(-1)).toEqual(end);
        expect(read.slice(0, -1).map((event) => event.type === 'tokens' && decodeTokensEvent(event))).toEqual(sent);
      }),
    );
  });

  test('what was handed out stays as it is when slabs are full', () => {
    const small = new EventWriter(100);
    const first = small.tokens({ ids: [1], logprobs: [-1] }, undefined, policyVersion(12));
    const text = first.toString();
    for (let id = 0; id < 50; id++) small.tokens({ ids: [id], logprobs: [-id] }, undefined, policyVersion(id));
    expect(first.toString()).toBe(text);
    expect(text).toBe('data: {"type":"tokens","ids":"AQAAAA==","logprobs":"AACAvw==","version":12}\n\n');
  });

  test('a cut inside an event shows', () => {
    const reader = new EventReader();
    expect(reader.push(Buffer.from('data: {"type":"er'))).toEqual([]);
    expect(reader.isBetweenEvents).toBe(false);
  });

  test.each([
    ['data: {\n\n', /damaged/u],
    ['data: {"type":"what"}\n\n', /event\.type is "what"/u],
    ['data: {"type":"end","finish":"never"}\n\n', /event\.finish is "never"/u],
  ])('%j is refused', (text, message) => {
    expect(() => new EventReader().push(Buffer.from(text))).toThrow(message);
  });

  test('a stream without line ends is refused before it fills the memory', () => {
    const reader = new EventReader({ maxEventBytes: 1000 });
    expect(() => {
      for (let turn = 0; turn < 20; turn++) reader.push(Buffer.alloc(100, 'x'));
    }).toThrow('passes 1000 bytes');
    const empty = new EventReader({ maxEventBytes: 1000 });
    expect(() => empty.push(Buffer.from('data:\n'.repeat(2000)))).toThrow('passes 1000 bytes');
  });

  test('tokens whose parts do not fit each other are refused', () => {
    const one = { type: 'tokens' as const, ids: encodeBase64(Int32Array.of(5)), version: policyVersion(0) };
    const logprobs = encodeBase64(Float32Array.of(-1));
    const kept = (...rows: Int32Array[]): string => encodeBase64(encodeKeptRows(rows));
    expect(decodeTokensEvent({ ...one, logprobs, kept: kept(Int32Array.of(5)) }).ids).toEqual(Int32Array.of(5));
    expect(() => decodeTokensEvent({ ...one, logprobs, kept: kept(Int32Array.of(4)) })).toThrow('not in its kept row');
    expect(() => decodeTokensEvent({ ...one, logprobs: '' })).toThrow('1 ids come with 0');
    expect(() => decodeTokensEvent({ ...one, ids: '', logprobs: '' })).toThrow('no token');
    for (const wrong of [Number.NaN, -Infinity, 0.5])
      expect(() => decodeTokensEvent({ ...one, logprobs: encodeBase64(Float32Array.of(wrong)) })).toThrow(
        `log-probability is ${wrong}`,
      );
    // Rows that nobody asked for are not even made: 5 bytes each, 16 MiB of ids.
    const wide = Int32Array.from({ length: 1 << 20 }, (_, id) => id);
    const many = encodeBase64(Buffer.concat(new Array<Uint8Array>(10_000).fill(encodeKeptRows([wide]))));
    expect(() => decodeTokensEvent({ ...one, logprobs, kept: many })).toThrow('more than 1 rows');
  });
});
