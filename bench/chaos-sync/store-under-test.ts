/**
 * The weight store of a fleet that is to be tested: a real S3 server behind a relay that spoils what passes where one is installed, a
 * folder elsewhere. Owns starting and ending them. Invariant: the relay is the only way of the fleet to the server.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { PortRelay } from '../../examples/three-clusters/link-shaping.ts';
import { createRandom, deriveSeed } from '../../src/domain/ids.ts';
import { startFaultyRelay, type FaultyRelay, type Faults } from '../../src/sync/store/faulty-relay.fixture.ts';
import { environmentOf, locationOf, missingRadosgw, startRadosgw } from '../../src/sync/store/radosgw.fixture.ts';
import type { StoreFaultKind, StoreFaults } from './fault-injector.ts';

export interface StoreUnderTest extends AsyncDisposable {
  readonly description: string;
  /** As services are told of it. */
  readonly location: string;
  /** What they need to reach it. */
  readonly environment: Readonly<Record<string, string>>;
  /** The location as seen from elsewhere: `expose` makes a URL of this machine reachable there, and returns the one to use. */
  through(expose: (url: string) => Promise<string>): Promise<string>;
  /** Undefined = nothing can be spoilt on the way. */
  readonly faults: StoreFaults | undefined;
}

export interface StoreUnderTestOptions {
  readonly store: 's3' | 'folder';
  /** Of what the relay spoils. */
  readonly seed?: number;
  /** False: the server itself, nothing between. */
  readonly isRelayed?: boolean;
}

/** Bytes a second of a slow link. */
const SLOW = 200_000;

/** What each kind of fault does to requests while it lasts, as shares of them. */
const SPOILT: Readonly<Record<StoreFaultKind, Faults>> = {
  'truncated-reads': { truncatedBody: 0.3 },
  'flipped-reads': { flippedBody: 0.3 },
  'stale-listings': { staleList: 1 },
  'store-errors': { slowDown: 0.02, reset: 0.015, lostAnswer: 0.015 },
  'slow-link': { slowBody: 0.1, stallMs: 1500 },
};

export function hasRadosgw(): boolean {
  return missingRadosgw() === undefined;
}

export async function openStoreUnderTest(
  directory: string,
  { store, seed = 1, isRelayed = true }: StoreUnderTestOptions,
): Promise<StoreUnderTest> {
  if (store === 'folder') return folderStore(join(directory, 'store'));
  await using starting = new AsyncDisposableStack();
  const server = starting.use(await startRadosgw());
  const relayed = isRelayed ? await relayTo(server.endpoint, { seed, stack: starting }) : undefined;
  const access = { ...server, endpoint: relayed?.endpoint ?? server.endpoint };
  const running = starting.move();
  return {
    description: `S3 (radosgw at ${server.endpoint}${isRelayed ? ', behind a relay that spoils requests' : ''})`,
    location: locationOf(access, 'fleet'),
    environment: environmentOf(access),
    through: async (expose) => locationOf({ ...access, endpoint: await expose(access.endpoint) }, 'fleet'),
    faults: relayed?.faults,
    [Symbol.asyncDispose]: () => running.disposeAsync(),
  };
}

function folderStore(folder: string): StoreUnderTest {
  mkdirSync(folder, { recursive: true });
  return {
    description: `a folder, as no S3 server was asked for or is installed: nothing can be spoilt on the way to it`,
    location: folder,
    environment: {},
    through: () => Promise.resolve(folder),
    faults: undefined,
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}

async function relayTo(
  target: string,
  { seed, stack }: { seed: number; stack: AsyncDisposableStack },
): Promise<{ endpoint: string; faults: StoreFaults }> {
  const relay = stack.use(await startFaultyRelay({ target, random: createRandom(deriveSeed(seed, 'relay')) }));
  const link = await PortRelay.open({ host: '127.0.0.1', port: 0, target: Number(new URL(relay.endpoint).port) });
  stack.defer(() => link.close());
  return { endpoint: `http://127.0.0.1:${link.port}`, faults: spoiler(relay, link) };
}

function spoiler(relay: FaultyRelay, link: PortRelay): StoreFaults {
  const active = new Set<StoreFaultKind>();
  return {
    set: (kind, isOn) => {
      if (isOn) active.add(kind);
      else active.delete(kind);
      link.bytesPerSecond = active.has('slow-link') ? SLOW : undefined;
      relay.setFaults(Object.assign({}, ...Array.from(active, (each) => SPOILT[each])) as Faults); // Faults, merged.
    },
    get counts() {
      return Object.fromEntries(Object.entries(relay.injected).filter(([, count]) => count > 0));
    },
  };
}
