/**
 * What really trained versions cost on the wire: models/nano is trained by `hone train` for a few steps at a given learning rate, and
 * each version is encoded against the one before it. The entropy bound is the one of the synthetic model: independent positions
 * and order-0 values, a tensor at a time.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { policyVersion } from '../../src/domain/ids.ts';
import { CodecPool } from '../../src/sync/delta/codec-pool.ts';
import type { DeltaEncoding } from '../../src/sync/delta/delta-codec.ts';
import { restoreVersion, withCache } from '../../src/sync/restore-version.ts';
import { FileStore } from '../../src/sync/store/file-store.ts';
import { LATEST_POINTER, parseIdentity } from '../../src/sync/version-directory.ts';
import { entropyBits } from '../synthetic-model.ts';

const ROOT = join(import.meta.dirname, '../..');

export interface TrainedVersions {
  readonly learningRate: number;
  /** One a version, against the one before. */
  readonly deltas: readonly {
    readonly changedShare: number;
    readonly boundBytes: number;
    readonly modelBytes: number;
    /** Tensors that changed. */
    readonly blobs: number;
    /** Blobs alone, as a model of 2.6 MB has as much header as weights that changed. */
    readonly bytes: Readonly<Record<DeltaEncoding, number>>;
  }[];
}

export async function measureTrained({
  learningRate,
  steps,
}: {
  learningRate: number;
  steps: number;
}): Promise<TrainedVersions> {
  const folder = await mkdtemp(join(tmpdir(), 'hone-trained-'));
  await using stack = new AsyncDisposableStack();
  stack.defer(() => rm(folder, { recursive: true, force: true }));
  const config = join(folder, 'config.json');
  await writeFile(
    config,
    JSON.stringify({
      name: 'trained',
      model: join(ROOT, 'models/nano'),
      algorithm: { steps, groupSize: 8, groupsPerStep: 8, learningRate, warmupSteps: 0 },
      schedule: { mode: 'sync' },
      eval: { tasks: 0 },
    }),
  );
  await run([join(ROOT, 'bin/hone.js'), 'train', config, '--runs', folder]);
  const store = await FileStore.open(join(folder, 'trained/weights'));
  const codec = stack.use(await CodecPool.start({ threads: 2 }));
  const latest = parseIdentity(
    (await store.readPointer(LATEST_POINTER))?.value ?? '',
    'the pointer of the trained run',
  );
  const images = await withCache(undefined, async (cacheDirectory) => {
    const restored = [];
    for (let version = 1; version <= latest.version; version++)
      restored.push(
        await restoreVersion(store, { ...latest, version: policyVersion(version) }, { codec, cacheDirectory }),
      );
    return restored;
  });
  const deltas = [];
  for (let at = 1; at < images.length; at++) {
    const old = images[at - 1]!.tensors;
    const next = images[at]!.tensors;
    const bytes = { sparse: 0, xor: 0, overwrite: 0 };
    let changed = 0;
    let elements = 0;
    let modelBytes = 0;
    let blobs = 0;
    let boundBytes = 0;
    for (const [name, tensor] of next) {
      const before = old.get(name)!;
      for (const encoding of ['sparse', 'xor', 'overwrite'] as const) {
        const encoded = await codec.encode({ name, encoding, old: before, next: tensor });
        for (const chunk of encoded.chunks) bytes[encoding] += chunk.byteLength;
        if (encoding !== 'sparse') continue;
        changed += encoded.changedElements;
        if (encoded.changedElements > 0) blobs++;
        elements += encoded.elements;
        modelBytes += 2 * encoded.elements;
      }
      if (before.place.kind === 'memory' && tensor.place.kind === 'memory')
        boundBytes += boundBitsOf(before.place.bytes, tensor.place.bytes) / 8;
    }
    deltas.push({ changedShare: changed / elements, boundBytes, modelBytes, blobs, bytes });
  }
  return { learningRate, deltas };
}

function boundBitsOf(old: Uint8Array, next: Uint8Array): number {
  const before = new Uint16Array(old.buffer, old.byteOffset, old.byteLength / 2);
  const after = new Uint16Array(next.buffer, next.byteOffset, next.byteLength / 2);
  const values = new Uint32Array(65_536);
  let changed = 0;
  for (let index = 0; index < before.length; index++) {
    const difference = before[index]! ^ after[index]!;
    if (difference === 0) continue;
    changed++;
    values[difference]!++;
  }
  return entropyBits(changed, before.length, values);
}

async function run(command: readonly string[]): Promise<void> {
  const child = spawn(process.execPath, command, { cwd: ROOT, stdio: ['ignore', 'ignore', 'pipe'] });
  let told = '';
  child.stderr.on('data', (chunk: Buffer) => (told += chunk.toString()));
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  if (code !== 0) throw new Error(`hone train ended with ${code}: ${told.split('\n').slice(-3).join(' ')}`);
}
