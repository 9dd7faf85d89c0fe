/**
 * An engine for tests: holds what is served and what is staged apart, as a real one does, writes down what it was asked to do, and
 * can be told to fail or to hang.
 */
import { xxh3 } from '@node-rs/xxhash';

import { policyVersion, type PolicyVersion } from '../domain/ids.ts';
import { imageChecksum } from './image-checksum.ts';
import type { SyncedReplica } from './reconciler.ts';

export class RecordingReplica implements SyncedReplica {
  version: PolicyVersion;
  readonly served: Map<string, Buffer>;
  readonly #staged = new Map<string, Buffer>();
  readonly stageCalls: string[] = [];
  readonly commits: number[] = [];
  /** Called in each stage and before each commit; what it throws, or waits for, is the engine's. */
  onStage: (name: string) => Promise<void> | void = () => undefined;
  onCommit: (version: number) => Promise<void> | void = () => undefined;

  constructor(version: number, served: ReadonlyMap<string, Buffer>) {
    this.version = policyVersion(version);
    this.served = new Map(served);
  }

  async stage(name: string, bytes: Uint8Array): Promise<void> {
    this.stageCalls.push(name);
    // What a broken call leaves behind is the worst that it can: all of it.
    this.#staged.set(name, Buffer.from(bytes));
    await this.onStage(name);
  }

  async commit(version: PolicyVersion): Promise<{ pauseMs: number }> {
    this.commits.push(version);
    await this.onCommit(version);
    for (const [name, bytes] of this.#staged) this.served.set(name, bytes);
    this.#staged.clear();
    this.version = version;
    return { pauseMs: 3 };
  }

  servedChecksums(): Promise<ReadonlyMap<string, string>> {
    return Promise.resolve(
      new Map([...this.served].map(([name, bytes]) => [name, xxh3.xxh128(bytes).toString(16).padStart(32, '0')])),
    );
  }

  async servedImage(): Promise<string> {
    return imageChecksum(await this.servedChecksums());
  }
}
