/**
 * A cluster on loopback for tests: a file store with versions of random bytes, a controller, and members with real servers.
 * Everything that was started ends with `close`.
 */
import { createHash } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { xxh3 } from '@node-rs/xxhash';

import { createRandom, policyVersion } from '../domain/ids.ts';
import { ClusterMember, type ClusterMemberEvent, type ClusterMemberOptions } from '../sync/cluster/cluster-member.ts';
import type { ControllerEvent } from '../sync/cluster/cluster-controller.ts';
import { FileStore } from '../sync/store/file-store.ts';
import { bodyOf, type ObjectSource, type WeightStore } from '../sync/store/weight-store.ts';
import { formatIdentity, formatIndex, INDEX_FILE, LATEST_POINTER } from '../sync/version-directory.ts';
import type { ProblemEvent } from './service-problems.ts';
import { startControllerServer, type ControllerServer, type ControllerServerOptions } from './controller-server.ts';
import { startControlServer, type ControlServer } from './service/control-server.ts';

/** Bytes that no compression and no mistake in order leaves as they are. */
export function noise(seed: number, sizeBytes: number): Buffer {
  const random = createRandom(seed);
  const words = new Uint32Array(Math.ceil(sizeBytes / 4));
  for (let index = 0; index < words.length; index++) words[index] = random.next() * 2 ** 32;
  return Buffer.from(words.buffer, 0, sizeBytes);
}

export const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

export interface PublishedFile {
  readonly key: string;
  readonly bytes: Buffer;
}

/** Publishes one version as an anchor or a delta in form; its one file holds the bytes as they are. */
export async function publishBytes(
  store: WeightStore,
  version: { readonly runId: string; readonly version: number; readonly base?: number },
  bytes: Buffer,
): Promise<PublishedFile> {
  const identity = { runId: version.runId, version: policyVersion(version.version), attempt: 0 };
  const directory = formatIdentity(identity);
  const file = 'model-00001-of-00001.safetensors';
  const key = `${directory}/${file}`;
  await store.putObject(key, bodyOf(bytes));
  const checksum = xxh3.xxh128(bytes).toString(16).padStart(32, '0');
  const base =
    version.base === undefined
      ? { encoding: undefined }
      : {
          encoding: 'sparse' as const,
          base: { runId: version.runId, version: policyVersion(version.base), attempt: 0 },
        };
  const index = formatIndex(
    {
      identity,
      ...base,
      checksumFormat: 'xxh3-128',
      weightMap: new Map([['tensor', file]]),
      files: new Map([[file, { sizeBytes: bytes.byteLength, checksum }]]),
      publishedAtMs: Date.now(),
    },
    bytes.byteLength,
  );
  await store.putObject(`${directory}/${INDEX_FILE}`, bodyOf(index));
  const pointer = await store.readPointer(LATEST_POINTER);
  await store.compareAndSwapPointer(LATEST_POINTER, pointer?.tag, directory);
  return { key, bytes };
}

export interface TestMember {
  readonly id: string;
  readonly member: ClusterMember;
  readonly server: ControlServer;
  readonly events: ClusterMemberEvent[];
  /** Times that another version was announced. */
  wakes: number;
  close(): Promise<void>;
}

export class TestCluster implements AsyncDisposable {
  readonly directory: string;
  readonly store: FileStore;
  readonly events: (ControllerEvent | ProblemEvent)[] = [];
  readonly members: TestMember[] = [];
  server: ControllerServer | undefined;
  #port = 0;

  private constructor(directory: string, store: FileStore) {
    this.directory = directory;
    this.store = store;
  }

  static async open(): Promise<TestCluster> {
    const directory = await mkdtemp(join(tmpdir(), 'hone-cluster-'));
    return new TestCluster(directory, await FileStore.open(join(directory, 'store')));
  }

  get url(): string {
    return this.server?.url ?? `http://127.0.0.1:${this.#port}`;
  }

  /** On the same port and with the same cache as before, when it was started before. */
  async startController(options: Partial<ControllerServerOptions> = {}): Promise<ControllerServer> {
    this.server = await startControllerServer({
      store: this.store,
      cluster: 'east',
      cacheDirectory: join(this.directory, 'controller'),
      cacheBytes: 2 ** 40,
      fanOut: 2,
      pollEveryMs: 3_600_000,
      memberLeaseMs: 2_000,
      aliveEveryMs: 100,
      now: () => performance.now(),
      wallMs: Date.now,
      onEvent: (event) => this.events.push(event),
      host: '127.0.0.1',
      port: this.#port,
      token: undefined,
      ...options,
    });
    this.#port = Number(new URL(this.server.url).port);
    return this.server;
  }

  async stopController(): Promise<void> {
    await this.server?.close();
    this.server = undefined;
  }

  /** `peerUrl` lets a test put something between this member and its children. */
  async addMember(
    id: string,
    options: Partial<ClusterMemberOptions> & { readonly through?: (url: string) => Promise<string> } = {},
  ): Promise<TestMember> {
    const { through, ...memberOptions } = options;
    const events: ClusterMemberEvent[] = [];
    const late: { member?: ClusterMember } = {};
    const server = await startControlServer({
      service: 'replica',
      host: '127.0.0.1',
      port: 0,
      token: undefined,
      health: () => ({ ready: true }),
      routes: () => undefined,
      raw: (request, response) => late.member?.handlePeerRequest(request, response) ?? false,
    });
    const url = through === undefined ? server.url : await through(server.url);
    const joined: TestMember = {
      id,
      events,
      server,
      wakes: 0,
      member: await ClusterMember.join({
        controllerUrl: this.url,
        id,
        peerUrl: () => url,
        cacheDirectory: join(this.directory, id),
        stallMs: 5_000,
        now: () => performance.now(),
        wallMs: Date.now,
        signal: new AbortController().signal,
        onWake: () => {
          joined.wakes += 1;
        },
        onEvent: (event) => events.push(event),
        ...memberOptions,
      }),
      close: async () => {
        await server.close();
        await joined.member.close();
      },
    };
    late.member = joined.member;
    this.members.push(joined);
    return joined;
  }

  /** Members in a tree, one after the other, so that ids give places. */
  async addMembers(count: number, options: Partial<ClusterMemberOptions> = {}): Promise<TestMember[]> {
    const added: TestMember[] = [];
    for (let index = 0; index < count; index++) {
      const joined = await this.addMember(`m${index}`, options);
      await until(() => joined.member.parentId !== undefined);
      added.push(joined);
    }
    return added;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.members.map(async ({ close }) => close()));
    await this.stopController();
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Waits for a condition; the deadline only ends a test that has failed. */
export async function until(isTrue: () => boolean, deadlineMs = 30_000): Promise<void> {
  const endMs = performance.now() + deadlineMs;
  while (!isTrue()) {
    if (performance.now() > endMs) throw new Error(`Not within ${deadlineMs} ms: ${isTrue.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A store whose reads of objects pass through a gate, for slow, broken and counted links. */
export function gateReads(
  store: WeightStore,
  gate: (key: string, chunks: AsyncIterable<Uint8Array>, start: number) => AsyncIterable<Uint8Array>,
): WeightStore {
  const readObject: ObjectSource['readObject'] = async (key, options = {}) => {
    const chunks = await store.readObject(key, options);
    return chunks === undefined ? undefined : gate(key, chunks, options.range?.start ?? 0);
  };
  // Methods stay bound to the store, whose state is private.
  return new Proxy(store, {
    get: (target, name) => {
      if (name === 'readObject') return readObject;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

export async function readAll(source: ObjectSource, key: string): Promise<Buffer> {
  const stream = await source.readObject(key);
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream ?? []) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Lets bytes up to a place pass; whoever wants more waits. */
export class Gate {
  #limit = 0;
  #waiting: (() => void)[] = [];

  open(limit: number): void {
    this.#limit = limit;
    for (const go of this.#waiting.splice(0)) go();
  }

  async passed(place: number): Promise<void> {
    while (place > this.#limit) await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }
}
