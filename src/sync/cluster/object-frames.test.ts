import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { chunkDigest } from './chunk-digest.ts';
import { ALIVE_FRAME, frameHeader, FrameReader, type Frame } from './object-frames.ts';

const chunks = fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 8 });

describe('object frames', () => {
  it('come out as they went in, however the bytes are cut', () => {
    fc.assert(
      fc.property(chunks, fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1 }), (bodies, cuts) => {
        const wire = Buffer.concat(
          bodies.flatMap((body) =>
            body.byteLength === 0 ? [ALIVE_FRAME] : [frameHeader(body.byteLength, chunkDigest(body)), body],
          ),
        );
        const reader = new FrameReader();
        const frames: Frame[] = [];
        for (let at = 0, turn = 0; at < wire.byteLength; turn++) {
          const cut = cuts[turn % cuts.length] ?? 1;
          frames.push(...reader.push(wire.subarray(at, at + cut)));
          at += cut;
        }
        expect(reader.isBetweenFrames).toBe(true);
        expect(frames.length).toBe(bodies.length);
        for (const [index, frame] of frames.entries()) {
          const body = bodies[index] ?? new Uint8Array();
          if (frame.kind === 'alive') expect(body.byteLength).toBe(0);
          else {
            expect(Buffer.compare(frame.memory.bytes, body)).toBe(0);
            expect(frame.digest).toBe(chunkDigest(body));
          }
        }
      }),
    );
  });

  it('notices a stream that ends inside a frame, and refuses a length that no chunk has', () => {
    const reader = new FrameReader();
    expect([...reader.push(frameHeader(5, chunkDigest(new Uint8Array(5))))]).toEqual([]);
    expect(reader.isBetweenFrames).toBe(false);
    expect(() => [...new FrameReader().push(Buffer.from([0xff, 0xff, 0xff, 0xff]))]).toThrow(/4294967295 bytes/);
  });
});
