/** `hone weights` as a user runs it, on stores that this test publishes: what it prints, what it fetches, what it refuses. */
import { cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { runHone, type HoneResult } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { createRandom, policyVersion } from '../src/domain/ids.ts';
import { CodecPool } from '../src/sync/delta/codec-pool.ts';
import { Publisher } from '../src/sync/publisher.ts';
import { writeReplicaLease } from '../src/sync/replica-leases.ts';
import { FileStore } from '../src/sync/store/file-store.ts';
import type { TensorPlace } from '../src/sync/tensor-place.ts';
import { readModelFolder } from '../src/tensor/hugging-face-folder.ts';
import type { TensorData } from '../src/tensor/safetensors.ts';

const VERSIONS = 6;

let directory = '';
/** The tensors of each version, boot model first. */
const published: ReadonlyMap<string, TensorData>[] = [];

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-weights-'));
  const model = join(directory, 'model');
  await writeTinyModel(model);
  const { tensors } = await readModelFolder(model);
  published.push(tensors);
  for (let version = 1; version <= VERSIONS; version++) published.push(changed(published.at(-1) ?? tensors, version));
  await publishInto('store', { anchorEvery: 4 }); // Anchors: 1 and 4.
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function publishInto(name: string, { anchorEvery }: { anchorEvery: number }): Promise<void> {
  const [boot = new Map(), ...versions] = published;
  await using codec = await CodecPool.start({ threads: 1 });
  const publisher = await Publisher.open(await FileStore.open(join(directory, name)), {
    runId: 'tiny',
    bootVersion: policyVersion(0),
    bootWeights: placed(boot),
    codec,
    anchorEvery,
    wallMs: () => Date.UTC(2030, 0, 2, 3, 4, 5),
  });
  for (const tensors of versions) await publisher.publish(placed(tensors));
}

function placed(tensors: ReadonlyMap<string, TensorData>): Map<string, TensorPlace> {
  return new Map(
    [...tensors].map(([name, { dtype, shape, bytes }]) => [name, { dtype, shape, place: { kind: 'memory', bytes } }]),
  );
}

/** A few bits of every second tensor. */
function changed(before: ReadonlyMap<string, TensorData>, version: number): Map<string, TensorData> {
  const random = createRandom(version);
  const next = new Map<string, TensorData>();
  for (const [at, [name, tensor]] of [...before].entries()) {
    const bytes = new Uint8Array(tensor.bytes);
    for (let count = 0; at % 2 === 0 && count < bytes.length / 100; count++) {
      const place = random.below(bytes.length);
      bytes[place] = (bytes[place] ?? 0) ^ 1;
    }
    next.set(name, { ...tensor, bytes });
  }
  return next;
}

const hone = (...args: string[]): Promise<HoneResult> => runHone(['weights', ...args], { cwd: directory });
async function json(...args: string[]): Promise<unknown> {
  const { stdout, code, stderr } = await hone(...args, '--json');
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}
async function refusal(...args: string[]): Promise<string> {
  const { stdout, code, stderr } = await hone(...args);
  expect(code, stderr).toBe(1);
  expect(stderr).not.toMatch(/^\s+at /mu);
  return `${stdout}${stderr.trim().split('\n').at(-1) ?? ''}`;
}
/** A copy of the store that a test may damage. */
function copyOfStore(name: string): string {
  cpSync(join(directory, 'store'), join(directory, name), { recursive: true });
  return join(directory, name);
}
/** One bit of the version's last tensor; returns the object's key. */
function damage(store: string, version: number): string {
  const key = `tiny/weight_v00000${version}/model-00001-of-00001.safetensors`;
  const bytes = readFileSync(join(store, key));
  bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 0x10;
  writeFileSync(join(store, key), bytes);
  return key;
}
async function tensorsOf(folder: string): Promise<Map<string, Buffer>> {
  const { tensors } = await readModelFolder(join(directory, folder));
  return sortedBytes(tensors);
}
function expected(version: number): Map<string, Buffer> {
  return sortedBytes(published[version] ?? new Map());
}
function sortedBytes(tensors: ReadonlyMap<string, TensorData>): Map<string, Buffer> {
  const names = [...tensors.keys()].toSorted();
  return new Map(names.map((name) => [name, Buffer.from(tensors.get(name)?.bytes ?? [])]));
}

describe.concurrent('hone weights', () => {
  it('ls lists every version in columns', async () => {
    const { stdout, code } = await hone('ls', 'store');
    expect(code).toBe(0);
    const lines = stdout.trimEnd().split('\n');
    expect(lines[0]).toMatch(/^RUN +VERSION +KIND +BASE +PUBLISHED \(UTC\) +BYTES +OF MODEL$/u);
    expect(lines[1]).toMatch(/^tiny +weight_v000001 +anchor +- +2030-01-02 03:04:05 +\d+\.\d KiB +100\.0 %$/u);
    expect(lines[2]).toMatch(/^tiny +weight_v000002 +sparse +weight_v000001 +.* KiB +\d\.\d\d %$/u);
    expect(lines[4]).toMatch(/weight_v000004 +anchor/u);
    expect(lines[6]).toMatch(/weight_v000006 \* +sparse/u);
    expect(lines.at(-1)).toMatch(/^6 versions, \d+\.\d KiB; \* is the newest, tiny\/weight_v000006$/u);
    const listed = (await json('ls', 'store')) as { versions: { version: number; latest: boolean; kind: string }[] };
    expect(listed).toMatchObject({ latest: 'tiny/weight_v000006' });
    expect(listed.versions.map(({ version, kind, latest }) => [version, kind, latest])).toEqual([
      [1, 'anchor', false],
      [2, 'sparse', false],
      [3, 'sparse', false],
      [4, 'anchor', false],
      [5, 'sparse', false],
      [6, 'sparse', true],
    ]);
  });

  it('takes a run folder for the store in it, and makes nothing where there is none', async () => {
    const run = join(directory, 'runs', 'tiny');
    mkdirSync(run, { recursive: true });
    writeFileSync(join(run, 'config.json'), '{}');
    cpSync(join(directory, 'store'), join(run, 'weights'), { recursive: true });
    expect(await json('ls', 'runs/tiny')).toMatchObject({ latest: 'tiny/weight_v000006' });
    expect(await refusal('ls', 'runs/other')).toBe(
      'hone: There is no weight store runs/other. Name a folder that versions were published to, a run folder such as runs/nano-check, or s3://bucket/prefix.',
    );
    expect(readdirSync(join(directory, 'runs'))).toEqual(['tiny']);
    mkdirSync(join(directory, 'foreign'));
    expect(await json('ls', 'foreign')).toMatchObject({ latest: null, versions: [] });
    expect(await json('prune', 'foreign', '--keep', '1', '--dry-run')).toMatchObject({ removedObjects: 0 });
    expect(readdirSync(join(directory, 'foreign'))).toEqual([]);
    // Other tools' folders have a config.json too, and may be stores.
    const plain = copyOfStore('plain');
    writeFileSync(join(plain, 'config.json'), '{"model_type":"qwen2"}');
    expect(await json('ls', 'plain')).toMatchObject({ latest: 'tiny/weight_v000006' });
    expect(await refusal('ls', 'ftp://host/folder')).toMatch(/^hone: A weight store cannot be at ftp:/u);
  });

  it('takes a run folder for the store that its config names', async () => {
    const run = join(directory, 'configured', 'tiny');
    mkdirSync(join(run, 'weights'), { recursive: true });
    const configure = (text: string): void => writeFileSync(join(run, 'config.json'), text);
    configure('{"name":"tiny","weights":{"store":"./store","keep":3}}');
    expect(await json('ls', 'configured/tiny')).toMatchObject({ latest: 'tiny/weight_v000006' });
    expect(await json('show', 'configured/tiny', '4')).toMatchObject({ directory: 'tiny/weight_v000004' });
    configure('{"name":"tiny","weights":{"store":"./elsewhere"}}');
    expect(await refusal('ls', 'configured/tiny')).toMatch(
      /The run configured\/tiny publishes to \.\/elsewhere, which is not a folder of \S+\. Call hone from the folder/u,
    );
    configure('{"name":"tiny","weights":{"store":"/nowhere/store"}}');
    expect(await refusal('ls', 'configured/tiny')).toMatch(
      /\/nowhere\/store, which is not a folder\. Bring the store/u,
    );
    configure('{"name":"tiny","weights":{"store":"s3:/bucket"}}');
    expect(await refusal('ls', 'configured/tiny')).toMatch(/s3:\/bucket names no bucket/u);
    configure('{"name":');
    expect(await refusal('ls', 'configured/tiny')).toMatch(/config\.json does not tell where the run publishes to/u);
  });

  it('ls shows what there is when the pointer cannot be read, and fails', async () => {
    const store = await FileStore.open(copyOfStore('unreadable'));
    const pointer = await store.readPointer('latest');
    expect(await store.compareAndSwapPointer('latest', pointer?.tag, 'garbled')).toBe('swapped');
    const told = await refusal('ls', 'unreadable');
    expect(told).toMatch(/^tiny +weight_v000006 +sparse/mu);
    expect(told).toMatch(/^6 versions, .* KiB; which one is the newest cannot be told\n/mu);
    expect(told).toMatch(/hone: Pointer latest .*garbled/u);
    const { stdout, code } = await hone('ls', 'unreadable', '--json');
    expect(code).toBe(1);
    const listed = JSON.parse(stdout) as { latest: unknown; problem: string; versions: unknown[] };
    expect(listed).toMatchObject({ latest: null, problem: expect.stringContaining('garbled') });
    expect(listed.versions).toHaveLength(6);
  });

  it('show tells of one version its tensors and the chain back to its anchor, however the version is written', async () => {
    const { stdout } = await hone('show', 'store');
    expect(stdout).toMatch(/^tiny\/weight_v000006 \(newest\) in .*store\n {2}kind +sparse, on tiny\/weight_v000005\n/u);
    expect(stdout).toMatch(
      /chain {6}weight_v000004 \(anchor\) → weight_v000005 → weight_v000006, 3 versions, \d+\.\d KiB in all\n/u,
    );
    expect((await hone('show', 'store', '1')).stdout).toMatch(/chain {6}weight_v000001 \(anchor\), 1 version, /u);
    await publishInto('long', { anchorEvery: 20 });
    expect((await hone('show', 'long')).stdout).toMatch(
      /chain {6}weight_v000001 \(anchor\) … weight_v000005 → weight_v000006, 6 versions, \d+\.\d KiB in all\n/u,
    );
    const tensors = [...(published[0]?.keys() ?? [])];
    expect(stdout).toContain(`\n${Math.ceil(tensors.length / 2)} tensors changed:\n`);
    expect(stdout).toMatch(/^model\.\S+ +model-00001-of-00001\.safetensors +sparse +[0-9a-f]{32} +\d+/mu);
    for (const text of ['4', 'v4', 'weight_v000004', 'tiny/4', 'tiny/weight_v000004', 'v000004-r0'])
      expect(await json('show', 'store', text), text).toMatchObject({
        directory: 'tiny/weight_v000004',
        kind: 'anchor',
        chain: [{ directory: 'tiny/weight_v000004' }],
        missing: null,
      });
    expect(await refusal('show', 'store', '9')).toMatch(/has no version 9; it has 6, from 1 to 6\. Name one/u);
    expect(await refusal('show', 'store', 'newest')).toMatch(/"newest" is not a version\. Write it as 7, v7/u);
  });

  it('verify rebuilds a version, or all, and names what is damaged', async () => {
    const { stdout, code } = await hone('verify', 'store', '--all');
    expect(code).toBe(0);
    expect(stdout.match(/ good /gu)).toHaveLength(VERSIONS);
    expect(await json('verify', 'store', '--version', '6')).toMatchObject({
      good: true,
      versions: [4, 5, 6].map((version) => ({ kind: 'good', directory: `tiny/weight_v00000${version}` })),
    });
    const damaged = copyOfStore('damaged');
    const file = damage(damaged, 2);
    const told = await refusal('verify', 'damaged', '--all');
    expect(told).toMatch(/weight_v000001 +good/u);
    expect(told).toMatch(/weight_v000002 +damaged/u);
    expect(told).toMatch(/weight_v000003 +unprovable/u);
    expect(told).toMatch(/weight_v000006 +good/u);
    expect(told).toMatch(new RegExp(`hone: ${file} is damaged: it has checksum .*1 more of 6 versions`, 'u'));
    expect((await hone('verify', 'damaged')).code).toBe(0);
    const unindexed = copyOfStore('unindexed');
    writeFileSync(join(unindexed, 'tiny/weight_v000005/model.safetensors.index.json'), '{');
    // In the order of versions, the unreadable index too.
    expect(await refusal('verify', 'unindexed', '--all')).toMatch(
      /v000004 +good .*\n.*v000005 +damaged .*\n.*v000006 +unprovable .*\nhone: tiny\/weight_v000005\/model\.safetensors\.index\.json is not/u,
    );
    rmSync(join(damaged, 'tiny/weight_v000004'), { recursive: true });
    expect(await refusal('verify', 'damaged')).toMatch(/weight_v000006 cannot be rebuilt:.*weight_v000004/u);
    expect((await hone('show', 'damaged')).stdout).toMatch(
      /chain {6}tiny\/weight_v000004, which the store does not have, → weight_v000005 → weight_v000006, 2 versions, /u,
    );
    expect(await refusal('verify', 'store', '--all', '--version', '6')).toMatch(/exclude each other/u);
    mkdirSync(join(directory, 'empty'));
    for (const args of [[], ['--all'], ['--all', '--json']]) {
      const { code, stdout, stderr } = await hone('verify', 'empty', ...args);
      expect([code, stdout]).toEqual([1, '']);
      expect(stderr).toMatch(/^hone: Nothing has been published to \S+empty\. Name .*\n$/u);
    }
  });

  it('pull brings a folder up to a version, and fetches only what is missing', async () => {
    const pull = (...args: string[]): Promise<unknown> =>
      json('pull', 'store', '--out', 'pulled', '--model', 'model', ...args);
    expect(await pull('--version', 'v2')).toMatchObject({
      version: 'tiny/weight_v000002',
      fetched: ['tiny/weight_v000001', 'tiny/weight_v000002'],
    });
    expect(await tensorsOf('pulled')).toEqual(expected(2));
    expect(await pull('--version', '3')).toMatchObject({ fetched: ['tiny/weight_v000003'] });
    expect(await tensorsOf('pulled')).toEqual(expected(3));
    expect(await pull()).toMatchObject({
      fetched: [4, 5, 6].map((version) => `tiny/weight_v00000${version}`),
    });
    expect(await tensorsOf('pulled')).toEqual(expected(6));
    expect(await pull()).toMatchObject({ fetched: [], fetchedBytes: 0 });
    // Back to an older one: from its anchor.
    expect(await pull('--version', '2')).toMatchObject({ version: 'tiny/weight_v000002' });
    expect(await tensorsOf('pulled')).toEqual(expected(2));
    // Bytes that rotted in the folder are found, and fetched again.
    const weights = join(directory, 'pulled', 'model.safetensors');
    const bytes = readFileSync(weights);
    bytes[bytes.length - 1] = (bytes.at(-1) ?? 0) ^ 1;
    writeFileSync(weights, bytes);
    await pull('--version', '2');
    expect(await tensorsOf('pulled')).toEqual(expected(2));
    expect(
      readdirSync(join(directory, 'pulled')).filter((name) => name.startsWith('.') || name.endsWith('.lock')),
    ).toEqual([]);
    expect(await refusal('pull', 'store', '--out', 'model', '--model', 'model')).toMatch(/model already holds/u);
    // And before anything was fetched.
    expect((await hone('pull', 'store', '--out', 'model', '--model', 'model')).stderr).not.toContain('weight_v000004,');
    expect(await tensorsOf('model')).toEqual(expected(0));
  });

  it('pull of a damaged version names object and tensor, and what is left goes on', async () => {
    const store = copyOfStore('rotten');
    const file = damage(store, 6);
    const pull = ['rotten', '--model', 'model', '--out'];
    expect(await refusal('pull', ...pull, 'half')).toMatch(
      new RegExp(
        `hone: ${file}: Tensor \\S+ cannot be made: .* half is there, half changed; the next pull into it`,
        'u',
      ),
    );
    await json('pull', ...pull, 'half', '--version', '5');
    expect(await tensorsOf('half')).toEqual(expected(5));
    rmSync(join(store, file));
    expect(await refusal('pull', ...pull, 'half')).toMatch(
      new RegExp(`no ${file}, .* half holds version 5 of tiny; the next pull goes on from there\\.$`, 'u'),
    );
    expect(await refusal('export', ...pull, 'exported')).not.toMatch(/export(ed|ing)/u);
    // Nothing was gained yet: the folder that the pull made is gone, one that was there stays.
    const anchor = damage(store, 4);
    expect(await refusal('pull', ...pull, 'unmade')).toMatch(
      /hone: tiny\/weight_v000004 is damaged: the bytes of \S+ in model-00001-of-00001\.safetensors are not those/u,
    );
    expect(readdirSync(directory)).not.toContain('unmade');
    rmSync(join(store, anchor));
    await refusal('pull', ...pull, 'unmade');
    mkdirSync(join(directory, 'unmade'));
    await refusal('pull', ...pull, 'unmade');
    expect(readdirSync(join(directory, 'unmade'))).toEqual([]);
  });

  it('export writes a plain folder, whole or not at all', async () => {
    const { stdout, code } = await hone('export', 'store', '--out', 'out', '--model', 'model', '--version', '5');
    expect(code).toBe(0);
    expect(stdout).toMatch(/^tiny\/weight_v000005 written to out: \d+ tensors, .* KiB, checksum [0-9a-f]{32}\.\n$/u);
    expect(await tensorsOf('out')).toEqual(expected(5));
    expect(readdirSync(join(directory, 'out')).toSorted()).toEqual(readdirSync(join(directory, 'model')).toSorted());
    expect(readFileSync(join(directory, 'out/config.json'))).toEqual(
      readFileSync(join(directory, 'model/config.json')),
    );
    expect(await refusal('export', 'store', '--out', 'out', '--model', 'model')).toMatch(/holds \d+ files already/u);
    const other = join(directory, 'other');
    await writeTinyModel(other);
    renameSync(join(other, 'config.json'), join(other, 'lost.json'));
    expect(await refusal('export', 'store', '--out', 'none', '--model', 'other')).toMatch(/has no config\.json/u);
    expect(readdirSync(directory).filter((name) => /none|exporting/u.test(name))).toEqual([]);
  });

  it('prune says what goes and why, and then does it', async () => {
    const store = await FileStore.open(copyOfStore('pruned'));
    const nowMs = Date.now();
    await writeReplicaLease(store, {
      cluster: 'eu',
      runId: 'tiny',
      oldestVersion: policyVersion(5),
      nowMs,
      ttlMs: 60_000,
    });
    const ended = { cluster: 'us', runId: 'tiny', oldestVersion: policyVersion(1), nowMs: Date.UTC(2026), ttlMs: 1000 };
    await writeReplicaLease(store, ended);
    await writeReplicaLease(store, { ...ended, cluster: 'mars', runId: 'other', nowMs: 1e20 });
    const { stdout } = await hone('prune', 'pruned', '--keep', '1', '--dry-run');
    expect(stdout).toMatch(/weight_v000003 +would go +old/u);
    expect(stdout).toMatch(/weight_v000004 +kept +chain of weight_v000006/u);
    expect(stdout).toMatch(/weight_v000006 +kept +latest/u);
    // Its own end, and what the clocks of clusters may differ by.
    const until = new Date(nowMs + 660_000).toISOString().replace('T', ' ').slice(0, 19);
    expect(stdout).toContain(`Lease of cluster eu: tiny from version 5 on, honoured until ${until} UTC.`);
    expect(stdout).toMatch(
      /Lease of cluster us: tiny from version 1 on, not honoured since 2026-01-01 00:10:01 UTC\./u,
    );
    expect(stdout).toMatch(/Lease of cluster mars: other from version 1 on, honoured until \+275760-09-13/u);
    expect(stdout).toMatch(/Would remove 6 objects, \d+\.\d KiB; 3 versions stay\.\n$/u);
    expect(await json('prune', 'pruned', '--keep', '1')).toMatchObject({ removedObjects: 6, dryRun: false });
    expect((await json('ls', 'pruned')) as object).toMatchObject({ versions: [{ version: 4 }, {}, { version: 6 }] });
    expect((await hone('verify', 'pruned', '--all')).code).toBe(0);
    expect(await refusal('prune', 'pruned', '--keep', '0')).toMatch(/--keep is 0, not a whole number from 1 up/u);
  });
});
