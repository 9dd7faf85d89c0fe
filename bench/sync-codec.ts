/**
 * The delta codec's speed and size on a synthetic model, for every encoding: encode, apply in memory and in a file, copy; in GB/s of model
 * bytes, as ratios to a plain copy of the same bytes and to the zstd command on the same XOR, all interleaved in one run.
 * `node bench/sync-codec.ts --gib 1 --density 0.01` prints a table; bench/sync.ts takes the functions.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

import { CodecPool } from '../src/sync/delta/codec-pool.ts';
import type { DeltaEncoding, EncodedTensor, TensorCodec } from '../src/sync/delta/delta-codec.ts';
import type { TensorPlaces } from '../src/sync/tensor-place.ts';
import {
  createSyntheticModel,
  placesOf,
  stepSyntheticModel,
  type SyntheticModel,
  type SyntheticStep,
} from './synthetic-model.ts';

export interface CodecFigures {
  readonly encoding: DeltaEncoding;
  readonly wireBytes: number;
  /** Wire bytes over those of the model, and over the entropy bound. */
  readonly share: number;
  readonly boundRatio: number;
  /** Best of the rounds, seconds for the whole model. */
  readonly encodeSeconds: number;
  readonly applyMemorySeconds: number;
  readonly applyFileSeconds: number;
}

export interface CodecMeasurement {
  readonly sizeBytes: number;
  readonly changedShare: number;
  readonly boundBytes: number;
  /** One thread copying the model from memory to memory. */
  readonly copySeconds: number;
  /** The codec's own copy with checksum, memory to memory, on its threads. */
  readonly codecCopySeconds: number;
  readonly checksumSeconds: number;
  /** The zstd command, level 1, on the XOR of both models in a file; undefined where it is not installed. */
  readonly zstd: { readonly seconds: number; readonly bytes: number } | undefined;
  readonly encodings: readonly CodecFigures[];
}

export interface CodecMeasureOptions {
  readonly encodings: readonly DeltaEncoding[];
  readonly rounds: number;
  /** A folder for two files of the model's size. */
  readonly folder: string;
}

/** Measures a step of the model. Every step of a round follows the one before it, so that all meet the same neighbours. */
export async function measureCodec(
  codec: TensorCodec,
  { model, step }: { model: SyntheticModel; step: SyntheticStep },
  { encodings, rounds, folder }: CodecMeasureOptions,
): Promise<CodecMeasurement> {
  const old = placesOf(model, model.bytes);
  const next = placesOf(model, step.bytes);
  const work = new Uint8Array(new SharedArrayBuffer(model.sizeBytes));
  const workPlaces = placesOf(model, work);
  const path = join(folder, 'model.bin');
  const filePlaces = placesOf(model, path);
  const best = new Map<string, number>();
  const time = async (what: string, job: () => Promise<unknown> | void): Promise<void> => {
    const started = performance.now();
    await job();
    const seconds = (performance.now() - started) / 1000;
    best.set(what, Math.min(seconds, best.get(what) ?? Infinity));
  };
  const differencePath = join(folder, 'difference.bin');
  await writeWhole(differencePath, xorOf(model.bytes, step.bytes));
  let zstd = await zstdCommand(differencePath);
  const encoded = new Map<DeltaEncoding, ReadonlyMap<string, EncodedTensor>>();
  for (let round = 0; round < rounds; round++) {
    await time('copy', () => plainCopy(model.bytes, work));
    await time('codec-copy', () => copyAll(codec, old, workPlaces));
    await time('checksum', () => Promise.all([...next.values()].map(({ place }) => codec.checksum(place))));
    for (const encoding of encodings) {
      await time(`${encoding}/encode`, async () => {
        encoded.set(encoding, await encodeAll(codec, encoding, { old, next }));
      });
      const blobs = encoded.get(encoding)!;
      plainCopy(model.bytes, work);
      await time(`${encoding}/memory`, () => applyAll(codec, encoding, { blobs, places: workPlaces }));
      if (!isEqual(work, step.bytes)) throw new Error(`${encoding} gave other bytes than the step's`);
      await writeWhole(path, model.bytes);
      await time(`${encoding}/file`, () => applyAll(codec, encoding, { blobs, places: filePlaces }));
    }
    if (zstd !== undefined && round > 0) {
      const again = await zstdCommand(differencePath);
      if (again !== undefined && again.seconds < zstd.seconds) zstd = again;
    }
  }
  return {
    sizeBytes: model.sizeBytes,
    changedShare: step.changedElements / step.elements,
    boundBytes: step.boundBytes,
    copySeconds: best.get('copy')!,
    codecCopySeconds: best.get('codec-copy')!,
    checksumSeconds: best.get('checksum')!,
    zstd,
    encodings: encodings.map((encoding) => {
      let wireBytes = 0;
      for (const { chunks } of encoded.get(encoding)!.values())
        for (const chunk of chunks) wireBytes += chunk.byteLength;
      return {
        encoding,
        wireBytes,
        share: wireBytes / model.sizeBytes,
        boundRatio: wireBytes / step.boundBytes,
        encodeSeconds: best.get(`${encoding}/encode`)!,
        applyMemorySeconds: best.get(`${encoding}/memory`)!,
        applyFileSeconds: best.get(`${encoding}/file`)!,
      };
    }),
  };
}

/** The measurement as lines for people. */
export function codecReport(measured: CodecMeasurement): string[] {
  const rate = (seconds: number): string => `${(measured.sizeBytes / seconds / 1e9).toFixed(2)} GB/s`;
  const toCopy = (seconds: number): string => `${(measured.copySeconds / seconds).toFixed(2)} x copy`;
  const percent = (bytes: number): string => `${((100 * bytes) / measured.sizeBytes).toFixed(3)} %`;
  const lines = [
    `${(measured.sizeBytes / 2 ** 30).toFixed(2)} GiB bf16, ${(100 * measured.changedShare).toFixed(3)} % of elements changed, entropy bound ${percent(measured.boundBytes)}`,
    `plain copy, one thread    ${rate(measured.copySeconds)}`,
    `codec copy with checksum  ${rate(measured.codecCopySeconds)}  ${toCopy(measured.codecCopySeconds)}`,
    `codec checksum            ${rate(measured.checksumSeconds)}  ${toCopy(measured.checksumSeconds)}`,
  ];
  if (measured.zstd !== undefined)
    lines.push(
      `zstd -1 -T2 of the XOR    ${rate(measured.zstd.seconds)}  ${percent(measured.zstd.bytes)} = ${(measured.zstd.bytes / measured.boundBytes).toFixed(3)} x bound`,
    );
  for (const figures of measured.encodings) {
    lines.push(
      `${figures.encoding.padEnd(9)} wire ${percent(figures.wireBytes)} = ${figures.boundRatio.toFixed(3)} x bound`,
      `  encode           ${rate(figures.encodeSeconds)}  ${toCopy(figures.encodeSeconds)}${measured.zstd === undefined ? '' : `  ${(measured.zstd.seconds / figures.encodeSeconds).toFixed(2)} x zstd`}`,
      `  apply in memory  ${rate(figures.applyMemorySeconds)}  ${toCopy(figures.applyMemorySeconds)}`,
      `  apply in a file  ${rate(figures.applyFileSeconds)}  ${toCopy(figures.applyFileSeconds)}`,
    );
  }
  return lines;
}

async function encodeAll(
  codec: TensorCodec,
  encoding: DeltaEncoding,
  { old, next }: { old: TensorPlaces; next: TensorPlaces },
): Promise<Map<string, EncodedTensor>> {
  return new Map(
    await Promise.all(
      [...next].map(
        async ([name, tensor]) =>
          [name, await codec.encode({ name, encoding, old: old.get(name)!, next: tensor })] as const,
      ),
    ),
  );
}

async function applyAll(
  codec: TensorCodec,
  encoding: DeltaEncoding,
  { blobs, places }: { blobs: ReadonlyMap<string, EncodedTensor>; places: TensorPlaces },
): Promise<void> {
  await Promise.all(
    [...blobs].map(async ([name, { chunks, checksum }]) => {
      if (chunks.length === 0) return;
      const tensor = places.get(name)!;
      const blob = { kind: 'memory', bytes: Buffer.concat(chunks) } as const;
      await codec.apply({ name, encoding, blob, from: tensor, to: tensor, checksum, checksumFormat: 'xxh3-128' });
    }),
  );
}

async function copyAll(codec: TensorCodec, from: TensorPlaces, to: TensorPlaces): Promise<void> {
  await Promise.all([...from].map(([name, { place }]) => codec.copy({ name, from: place, to: to.get(name)!.place })));
}

/** The fastest copy that Node offers between shared buffers. */
function plainCopy(from: Uint8Array, to: Uint8Array): void {
  Buffer.from(from.buffer, from.byteOffset, from.byteLength).copy(Buffer.from(to.buffer, to.byteOffset, to.byteLength));
}

function isEqual(left: Uint8Array, right: Uint8Array): boolean {
  return Buffer.compare(left, right) === 0;
}

function xorOf(left: Uint8Array, right: Uint8Array): Uint8Array {
  const words = left.byteLength / 4;
  const out = new Uint32Array(words);
  const a = new Uint32Array(left.buffer, left.byteOffset, words);
  const b = new Uint32Array(right.buffer, right.byteOffset, words);
  for (let index = 0; index < words; index++) out[index] = a[index]! ^ b[index]!;
  return new Uint8Array(out.buffer);
}

async function writeWhole(path: string, bytes: Uint8Array): Promise<void> {
  const file = await open(path, 'w');
  try {
    const step = 1 << 26;
    for (let offset = 0; offset < bytes.byteLength; offset += step) {
      const part = bytes.subarray(offset, offset + step);
      for (let done = 0; done < part.byteLength;) done += (await file.write(part, done)).bytesWritten;
    }
  } finally {
    await file.close();
  }
}

async function zstdCommand(path: string): Promise<{ seconds: number; bytes: number } | undefined> {
  const started = performance.now();
  let bytes = 0;
  const child = spawn('zstd', ['-1', '-T2', '-q', '-c', path], { stdio: ['ignore', 'pipe', 'ignore'] });
  child.stdout.on('data', (chunk: Buffer) => (bytes += chunk.byteLength));
  const code = await new Promise<number | undefined>((resolve) => {
    child.once('error', () => resolve(undefined));
    child.once('close', (exit) => resolve(exit ?? undefined));
  });
  return code === 0 ? { seconds: (performance.now() - started) / 1000, bytes } : undefined;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      gib: { type: 'string', default: '1' },
      density: { type: 'string', multiple: true, default: ['0.0025', '0.01', '0.03'] },
      encoding: { type: 'string', multiple: true, default: ['sparse', 'xor', 'overwrite'] },
      threads: { type: 'string', default: '2' },
      rounds: { type: 'string', default: '3' },
      seed: { type: 'string', default: '1' },
    },
  });
  const encodings = (['sparse', 'xor', 'overwrite'] as const).filter((name) => values.encoding.includes(name));
  const model = createSyntheticModel({ sizeBytes: Number(values.gib) * 2 ** 30, seed: Number(values.seed) });
  const into = new Uint8Array(new SharedArrayBuffer(model.sizeBytes));
  const folder = await mkdtemp(join(tmpdir(), 'hone-codec-'));
  await using codec = await CodecPool.start({ threads: Number(values.threads) });
  try {
    for (const density of values.density) {
      const step = stepSyntheticModel(model, { density: Number(density), seed: Number(values.seed) + 1, into });
      const measured = await measureCodec(codec, { model, step }, { encodings, rounds: Number(values.rounds), folder });
      console.log(codecReport(measured).join('\n'), '\n');
    }
  } finally {
    await rm(folder, { recursive: true });
  }
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) await main();
