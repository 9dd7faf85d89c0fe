/**
 * What it costs to bring an object to every member of a cluster over the broadcast tree, against a plain copy of the same bytes and
 * against members that each read the store in turn; and how long a small version takes from the pointer's move to the last member.
 * Controller and members are processes. `--mib 256 --members 6 --rounds 3 --versions 20`.
 */
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { availableParallelism, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { aCount, readScriptOptions } from '../scripts/script-options.ts';
import { noise, publishBytes, until } from '../src/serve/cluster.fixture.ts';
import { FileStore } from '../src/sync/store/file-store.ts';

const MIB = 2 ** 20;
const SMALL_BYTES = 30 * 1024;
const LAUNCHER = fileURLToPath(new URL('../bin/hone.js', import.meta.url));
const MEMBER = fileURLToPath(new URL('../src/serve/cluster-member-process.fixture.ts', import.meta.url));

const values = readScriptOptions({
  name: 'bench:cluster',
  summary: 'The broadcast tree of a cluster against reading the store in turn.',
  options: {
    mib: aCount(256, 'size of the object, in MiB'),
    members: aCount(6, 'members of the cluster'),
    rounds: aCount(3, 'times that the object is sent'),
    versions: aCount(20, 'small versions whose announcement is timed'),
  },
});
const sizeBytes = values.mib * MIB;
const memberCount = values.members;

interface Told {
  readonly event?: string;
  readonly url?: string;
  readonly key?: string;
  readonly atMs?: number;
  readonly cpuSeconds?: number;
  readonly rssBytes?: number;
  readonly maxRssBytes?: number;
}

/** A controller or a member; what it tells is kept in order. */
class Process implements AsyncDisposable {
  readonly child: ChildProcessWithoutNullStreams;
  readonly told: Told[] = [];
  readonly #ended: Promise<unknown>;

  constructor(args: readonly string[]) {
    this.child = spawn(process.execPath, args, { stdio: 'pipe' });
    this.child.stderr.resume();
    this.child.stdin.on('error', () => undefined);
    createInterface(this.child.stdout).on('line', (line) => this.told.push(JSON.parse(line) as Told)); // Its own lines.
    this.#ended = once(this.child, 'close');
  }

  async hears(isIt: (told: Told) => boolean): Promise<Told> {
    let found: Told | undefined;
    await until(() => (found = this.told.find(isIt)) !== undefined, 120_000);
    return found ?? {};
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.child.kill('SIGKILL');
    await this.#ended;
  }
}

const directory = await mkdtemp(join(tmpdir(), 'hone-bench-cluster-'));
console.log(`${availableParallelism()} cores, load ${loadavg()[0]?.toFixed(1)}; ${memberCount} members on loopback`);
try {
  await using stack = new AsyncDisposableStack();
  const store = await FileStore.open(join(directory, 'store'));
  const where = ['--store', store.location, '--cache', join(directory, 'cache'), '--port', '0', '--json'];
  const pace = ['--poll-seconds', '3600', '--lease-seconds', '30'];
  const controller = stack.use(new Process([LAUNCHER, 'serve', 'controller', '--cluster', 'bench', ...where, ...pace]));
  const { url = '' } = await controller.hears((told) => told.url !== undefined);
  const members: Process[] = [];
  for (let index = 0; index < memberCount; index++) {
    const member = stack.use(new Process([MEMBER, url, `m${index}`, join(directory, `m${index}`), 'plain']));
    await member.hears(({ event }) => event === 'controller-found');
    members.push(member);
  }
  const wake = async (): Promise<void> => void (await fetch(`${url}/wake`, { method: 'POST' }));
  let version = 0;
  const publish = async (bytes: Buffer): Promise<string> => {
    version += 1;
    const base = version === 1 ? {} : { base: version - 1 };
    return (await publishBytes(store, { runId: 'run', version, ...base }, bytes)).key;
  };
  const bring = async (key: string): Promise<Told[]> => {
    for (const member of members) member.child.stdin.write(`${key}\n`);
    return Promise.all(
      members.map(async (member) => member.hears((told) => told.event === 'here' && told.key === key)),
    );
  };

  const rates: { copy: number; reads: number; tree: number }[] = [];
  let last: Told[] = [];
  let before: Told[] = members.map((member) => member.told.find(({ event }) => event === 'started') ?? {});
  for (let round = 0; round < values.rounds; round++) {
    const key = await publish(noise(round + 1, sizeBytes));
    await wake();
    const treeSeconds = await seconds(async () => {
      if (round > 0) before = last;
      last = await bring(key);
    });
    const copySeconds = await seconds(async () => copyPlainly(store.localPath(key) ?? '', join(directory, 'copy')));
    const readsSeconds = await seconds(async () => {
      for (let index = 0; index < memberCount; index++) await readFromStore(store, key, join(directory, 'read'));
    });
    const rate = (taken: number): number => sizeBytes / taken / 1e6;
    rates.push({ copy: rate(copySeconds), reads: rate(readsSeconds), tree: rate(treeSeconds) });
    const cpu = last.map((told, index) => (told.cpuSeconds ?? 0) - (before[index]?.cpuSeconds ?? 0));
    console.log(
      `${values.mib} MiB to all: tree ${rate(treeSeconds).toFixed(1)} MB/s, reads of the store in turn ${rate(readsSeconds).toFixed(1)} MB/s ` +
        `(tree ${(readsSeconds / treeSeconds).toFixed(2)} times that), one plain copy ${rate(copySeconds).toFixed(0)} MB/s ` +
        `(all ${memberCount} copies by the tree at ${((memberCount * copySeconds) / treeSeconds).toFixed(2)} times its rate); ` +
        `CPU s a member ${cpu.map((value) => value.toFixed(2)).join(' ')}`,
    );
  }
  const peak = last.map(({ maxRssBytes = 0 }) => (maxRssBytes / MIB).toFixed(0));
  console.log(`peak memory of a member, MiB: ${peak.join(' ')}`);

  const latencies: number[] = [];
  for (let index = 0; index < values.versions; index++) {
    const key = await publish(noise(100 + index, SMALL_BYTES));
    const wakesBefore = members.map((member) => wakesOf(member).length);
    const startedMs = Date.now();
    await wake();
    // A member is woken when the small version lies there whole; `bring` proves it.
    await until(() => members.every((member, at) => wakesOf(member).length > (wakesBefore[at] ?? 0)));
    latencies.push(Math.max(...members.map((member) => wakesOf(member).at(-1)?.atMs ?? Infinity)) - startedMs);
    await bring(key);
  }
  latencies.sort((one, other) => one - other);
  const at = (share: number): string => String(latencies[Math.floor(share * (latencies.length - 1))] ?? '-');
  console.log(`${SMALL_BYTES / 1024} KiB version, from wake to the last member, ms: median ${at(0.5)}, most ${at(1)}`);
} finally {
  await rm(directory, { recursive: true, force: true });
}

function wakesOf(member: Process): Told[] {
  return member.told.filter(({ event }) => event === 'woken');
}

async function seconds(work: () => Promise<void>): Promise<number> {
  const startedMs = performance.now();
  await work();
  return (performance.now() - startedMs) / 1000;
}

async function copyPlainly(from: string, to: string): Promise<void> {
  await using source = await open(from, 'r');
  await using target = await open(to, 'w');
  const buffer = Buffer.allocUnsafe(MIB);
  for (;;) {
    const { bytesRead } = await source.read(buffer, 0, MIB);
    if (bytesRead === 0) return;
    await target.write(buffer, 0, bytesRead);
  }
}

async function readFromStore(store: FileStore, key: string, to: string): Promise<void> {
  await using target = await open(to, 'w');
  for await (const bytes of (await store.readObject(key)) ?? []) await target.write(bytes);
}
