/** The controller as a process with members as processes, and what happens when any of them is killed. */
import { spawn, type ChildProcessWithoutNullStreams } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { afterEach, beforeEach, describe, expect, it } from 'vitest';

import { noise, publishBytes, sha256, until } from '../src/serve/cluster.fixture.ts';
import { startLink, type Link } from '../src/serve/link.fixture.ts';
import { FileStore } from '../src/sync/store/file-store.ts';
import { LATEST_POINTER } from '../src/sync/version-directory.ts';
import { runHone } from './hone-process.fixture.ts';

const MIB = 2 ** 20;
const LAUNCHER = fileURLToPath(new URL('../bin/hone.js', import.meta.url));
const MEMBER = fileURLToPath(new URL('../src/serve/cluster-member-process.fixture.ts', import.meta.url));

interface Told {
  readonly event?: string;
  readonly url?: string;
  readonly sha256?: string;
  readonly parent?: string | null;
  readonly counts?: { readonly receivedBytes: number };
}

class Process {
  readonly child: ChildProcessWithoutNullStreams;
  readonly told: Told[] = [];
  stderr = '';
  readonly ended: Promise<unknown>;

  constructor(args: readonly string[], environment: NodeJS.ProcessEnv = process.env) {
    this.child = spawn(process.execPath, args, { stdio: 'pipe', env: environment });
    this.child.stderr.setEncoding('utf8').on('data', (text: string) => (this.stderr += text));
    this.child.stdin.on('error', () => undefined);
    createInterface(this.child.stdout).on('line', (line) => this.told.push(JSON.parse(line) as Told)); // Its own lines.
    this.ended = once(this.child, 'close');
  }

  async hears(event: string): Promise<Told> {
    await until(() => this.told.some((told) => told.event === event), 100_000);
    return this.told.find((told) => told.event === event) ?? {};
  }

  async kill(signal: NodeJS.Signals): Promise<void> {
    this.child.kill(signal);
    await this.ended;
  }
}

describe('hone serve controller', () => {
  let directory: string;
  let store: FileStore;
  let processes: Process[];
  const links: Link[] = [];

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'hone-controller-'));
    store = await FileStore.open(join(directory, 'store'));
    processes = [];
  });
  afterEach(async () => {
    for (const started of processes) await started.kill('SIGKILL');
    for (const link of links.splice(0)) await link[Symbol.asyncDispose]();
    await rm(directory, { recursive: true, force: true });
  });

  const start = (...args: string[]): Process => {
    const started = new Process(args);
    processes.push(started);
    return started;
  };
  const startController = async (port: string, ...more: string[]): Promise<{ process: Process; url: string }> => {
    const where = ['--store', store.location, '--cache', join(directory, 'cache'), '--port', port];
    const pace = ['--poll-seconds', '3600', '--lease-seconds', '3'];
    const said = ['--events', join(directory, 'events.jsonl'), '--json'];
    const service = [LAUNCHER, 'serve', 'controller', '--cluster', 'west'];
    const controller = start(...service, ...where, ...pace, ...said, ...more);
    await until(() => controller.told.length > 0, 100_000);
    return { process: controller, url: controller.told[0]?.url ?? '' };
  };
  const addMember = async (controllerUrl: string, id: string): Promise<Process> => {
    const member = start(MEMBER, controllerUrl, id, join(directory, id));
    await member.hears('controller-found');
    return member;
  };
  const events = async (): Promise<{ event: string }[]> =>
    (await readFile(join(directory, 'events.jsonl'), 'utf8'))
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { event: string });

  it('survives kill -9 of a parent and of itself in the middle of a transfer: children have the same bytes, each once', async () => {
    const published = await publishBytes(store, { runId: 'run', version: 1 }, noise(3, 64 * MIB));
    const first = await startController('0');
    // The link between the parents and the controller stands still after some chunks, until both kills are done.
    const released = Promise.withResolvers<void>();
    const held = await startLink(first.url, {
      back: async (bytes, offset) => {
        if (offset > 20 * MIB) await released.promise;
        return bytes;
      },
    });
    links.push(held);
    // Each start takes most of a second of CPU: side by side, all but the order of parents before children is free.
    const parents = await Promise.all(['m0', 'm1'].map(async (id) => addMember(held.url, id)));
    const children = await Promise.all(['m2', 'm3', 'm4', 'm5'].map(async (id) => addMember(first.url, id)));
    const status = async (): Promise<{
      members: { id: string; parent: string | null; counts: { receivedBytes: number } }[];
    }> => (await (await fetch(`${first.url}/status`)).json()) as never;
    expect((await status()).members.filter(({ parent }) => parent === 'm0').length).toBe(2);
    for (const child of children) child.child.stdin.write(`${published.key}\n`);
    await until(() => held.backBytes > 16 * MIB);
    await parents[0]?.kill('SIGKILL');
    const port = new URL(first.url).port;
    await first.process.kill('SIGKILL');
    await startController(port);
    released.resolve();
    for (const child of children) {
      const here = await child.hears('here');
      expect(here.sha256).toBe(sha256(published.bytes));
      expect(here.counts?.receivedBytes).toBe(64 * MIB);
      expect(here.parent).not.toBe('m0');
    }
    const told = await events();
    expect(told.filter(({ event }) => event === 'version-seen').length).toBe(2);
    expect(told).toContainEqual(
      expect.objectContaining({ event: 'object-fetched', key: published.key, bytes: 64 * MIB }),
    );
  });

  it('tells members of a new version at once when it is woken, and ends with 0 on SIGTERM while they go on', async () => {
    await publishBytes(store, { runId: 'run', version: 1 }, noise(1, 1000));
    const { process: controller, url } = await startController('0', '--lease-seconds', '3000');
    const member = await addMember(url, 'm0');
    await member.hears('woken');
    const second = await publishBytes(store, { runId: 'run', version: 2, base: 1 }, noise(2, 3 * MIB));
    await fetch(`${url}/wake`, { method: 'POST' });
    await until(() => member.told.filter(({ event }) => event === 'woken').length === 2);
    member.child.stdin.write(`${second.key}\n`);
    expect((await member.hears('here')).sha256).toBe(sha256(second.bytes));
    const metrics = await (await fetch(`${url}/metrics`)).text();
    expect(metrics).toContain('hone_controller_version 2');
    expect(metrics).toMatch(/hone_controller_store_bytes_total \d{7}/);
    controller.child.kill('SIGTERM');
    expect(await controller.ended).toEqual([0, null]);
    await member.hears('controller-lost');
    expect(member.child.exitCode).toBe(null);
  });

  it('says what its store lacks, each thing once and its end, shows it, and says that it ends', async () => {
    const { process: controller, url } = await startController('0');
    const look = async (): Promise<void> => void (await fetch(`${url}/wake`, { method: 'POST' }));
    // The page's own form.
    const problems = async (): Promise<object[]> =>
      ((await (await fetch(`${url}/status`)).json()) as { problems: object[] }).problems;
    const lines = (): string[] =>
      controller.stderr
        .trimEnd()
        .split('\n')
        .map((line) => line.replace('hone: controller of cluster west', '').trim());
    const says = (text: string): Promise<void> => until(() => controller.stderr.includes(text), 60_000);
    await says('Nothing is published');
    await publishBytes(store, { runId: 'run', version: 1 }, noise(1, 1000));
    await look();
    await says('is the first');
    const right = await store.readPointer(LATEST_POINTER);
    const wrong = 'other/weight_v000001';
    expect(await store.compareAndSwapPointer(LATEST_POINTER, right?.tag, wrong)).toBe('swapped');
    const polls = async (): Promise<number> => {
      const text = await (await fetch(`${url}/metrics`)).text();
      return Number(/hone_controller_polls_total (\d+)/u.exec(text)?.[1]);
    };
    // Several looks at the same pointer are one line.
    for (let before = await polls(), last = before; last < before + 3; last = await polls()) await look();
    await says('belongs to run other');
    expect(await problems()).toMatchObject([{ about: 'pointer', problem: expect.stringContaining('--run other') }]);
    const refused = await store.readPointer(LATEST_POINTER);
    await store.compareAndSwapPointer(LATEST_POINTER, refused?.tag, right?.value ?? '');
    await look();
    await says('follows the pointer');
    expect(await problems()).toEqual([]);
    await controller.kill('SIGINT');
    expect(controller.child.exitCode).toBe(0);
    expect(lines()).toEqual([
      `listens on ${url} and follows ${store.location}`,
      `: Nothing is published in ${store.location} yet.`,
      ': run/weight_v000001 is the first that is published.',
      ': The weight store now belongs to run other, this cluster follows run. Start the controller with --run other to follow it.',
      `: It follows the pointer of ${store.location} again.`,
      'ends; its replicas go on with what they have',
    ]);
    expect((await events()).map(({ event }) => event)).toEqual(expect.arrayContaining(['problem-met', 'problem-over']));
  });

  it('refuses, in one sentence with the cure, a cache that is in use, a bad fan-out and a host that others reach without a token', async () => {
    await startController('0');
    const cases: [string[], RegExp][] = [
      [['--cache', join(directory, 'cache')], /in use by process \d+\. Give each controller a cache of its own/],
      [['--cache', join(directory, 'other'), '--fan-out', '0'], /--fan-out is 0, not a whole number from 1 to 64/],
      [
        ['--cache', join(directory, 'other'), '--host', '0.0.0.0'],
        /which others can reach, without a token\. Set HONE_TOKEN/,
      ],
    ];
    for (const [args, sentence] of cases) {
      const { code, stderr } = await runHone(['serve', 'controller', '--store', store.location, ...args], {
        cwd: directory,
      });
      expect(stderr).toMatch(sentence);
      expect(code).toBe(1);
    }
  });
});
