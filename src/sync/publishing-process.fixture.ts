/**
 * A process that opens a publisher and publishes version after version, for tests that kill it. Arguments: store directory, salt,
 * and optionally the store call, counted from 1 after opening, before which it kills itself. Prints each published version.
 * The weights of a version follow from (salt, version), so that a test can tell whole versions from mixed ones.
 */
import { pathToFileURL } from 'node:url';

import { createRandom, policyVersion } from '../domain/ids.ts';
import { FileStore } from './store/file-store.ts';
import { Publisher, type PublisherOptions } from './publisher.ts';
import { watchStore } from './store/watched-store.fixture.ts';

export const SHAPES: ReadonlyMap<string, readonly number[]> = new Map([
  ['salt', [2]],
  ['model.layers.0.weight', [60, 50]],
  ['model.layers.1.weight', [50, 60]],
  ['model.norm.weight', [101]],
]);

/** All tensors of one version; `salt` itself is stored in the first. Salt 0, version 0 are the boot weights. */
export function weightsOf(salt: number, version: number): Map<string, Uint8Array> {
  const weights = new Map<string, Uint8Array>();
  for (const [name, shape] of SHAPES) {
    const random = createRandom(7);
    const elements = Uint16Array.from({ length: shape.reduce((product, extent) => product * extent, 1) }, () =>
      random.below(65_536),
    );
    const changes = createRandom(salt * 100_003 + version);
    if (version > 0)
      for (let count = 0; count < elements.length / 20; count++)
        elements[changes.below(elements.length)] = changes.below(65_536);
    if (name === 'salt') elements.set([salt, version]);
    weights.set(name, new Uint8Array(elements.buffer));
  }
  return weights;
}

export const PUBLISHER_OPTIONS: PublisherOptions = {
  runId: 'run',
  bootVersion: policyVersion(0),
  bootWeights: weightsOf(0, 0),
  anchorEvery: 4,
};

async function main([root = '', salt = '', killBeforeCall = '']: readonly string[]): Promise<never> {
  let calls = -Infinity;
  const store = watchStore(await FileStore.open(root), ({ when }) => {
    if (when === 'before' && ++calls === Number(killBeforeCall)) process.kill(process.pid, 'SIGKILL');
  });
  const publisher = await Publisher.open(store, PUBLISHER_OPTIONS);
  process.stdout.write('open\n');
  if (killBeforeCall !== '') calls = 0;
  for (;;) {
    const { version } = await publisher.publish(weightsOf(Number(salt), publisher.version + 1), SHAPES);
    process.stdout.write(`${version}\n`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main(process.argv.slice(2));
