/**
 * Which version a cluster follows: what was accepted last, and the judgement of what the store's pointer says next. Invariants: what is
 * accepted never goes back and never changes to another run; it is on the disk before it is announced, so that a controller which is killed
 * and started again goes on from there.
 */
import { readFile } from 'node:fs/promises';

import { reasonOf } from '../../domain/errors.ts';
import { writeFileDurably } from '../../tensor/durable-file.ts';
import { errnoCode } from '../../tensor/errno-code.ts';
import { formatIdentity, LATEST_POINTER, parseIdentity, type VersionIdentity } from '../version-directory.ts';

export interface AcceptedVersion {
  readonly identity: VersionIdentity;
  /** Such as `my-run/weight_v000007`. */
  readonly name: string;
}

export interface RefusedPointer {
  readonly atMs: number;
  readonly pointer: string;
  readonly reason: string;
}

export type PointerVerdict =
  | { readonly kind: 'followed'; readonly identity: VersionIdentity }
  | { readonly kind: 'refused'; readonly reason: string };

const REFUSALS_KEPT = 20;

export class FollowedVersion {
  readonly #path: string;
  readonly #refusals: RefusedPointer[] = [];
  #runId: string | undefined;
  #accepted: AcceptedVersion | undefined;
  #lastRefused: string | undefined;

  private constructor(path: string, runId: string | undefined) {
    this.#path = path;
    this.#runId = runId;
  }

  /** Takes up what an earlier process accepted and kept at `path`, unless that is of another run than the one to follow. */
  static async open(path: string, runId: string | undefined): Promise<FollowedVersion> {
    const followed = new FollowedVersion(path, runId);
    let text: string;
    try {
      text = await readFile(path, 'utf8');
    } catch (error) {
      if (errnoCode(error) === 'ENOENT') return followed;
      throw error;
    }
    const identity = parseIdentity(text.trim(), path);
    if (runId === undefined || runId === identity.runId) followed.#take(identity);
    return followed;
  }

  /** Undefined until a pointer was followed, when none was named at the start. */
  get runId(): string | undefined {
    return this.#runId;
  }

  get accepted(): AcceptedVersion | undefined {
    return this.#accepted;
  }

  /** The last ones, oldest first. */
  get refusals(): readonly RefusedPointer[] {
    return this.#refusals;
  }

  /** A pointer is followed when it is readable, of the run that is followed, and not behind what was accepted. */
  judge(pointer: string): PointerVerdict {
    let identity: VersionIdentity;
    try {
      identity = parseIdentity(pointer, `Pointer ${LATEST_POINTER}`);
    } catch (error) {
      return { kind: 'refused', reason: reasonOf(error) };
    }
    if (this.#runId !== undefined && identity.runId !== this.#runId)
      return {
        kind: 'refused',
        reason: `The weight store now belongs to run ${identity.runId}, this cluster follows ${this.#runId}. Start the controller with --run ${identity.runId} to follow it.`,
      };
    const { name, identity: accepted } = this.#accepted ?? {};
    const isAhead = accepted === undefined || identity.version > accepted.version;
    if (isAhead || formatIdentity(identity) === name) return { kind: 'followed', identity };
    return { kind: 'refused', reason: `The pointer went back from ${name} to ${pointer}.` };
  }

  /** Whether this is news: the same pointer at every look is told once. */
  refuse(refused: RefusedPointer): boolean {
    if (this.#lastRefused === refused.pointer) return false;
    this.#lastRefused = refused.pointer;
    this.#refusals.push(refused);
    if (this.#refusals.length > REFUSALS_KEPT) this.#refusals.shift();
    return true;
  }

  /** Resolves when a successor of this process would go on from it. */
  async accept(identity: VersionIdentity): Promise<void> {
    this.#lastRefused = undefined;
    if (this.#accepted?.name === formatIdentity(identity)) return;
    await writeFileDurably(this.#path, [Buffer.from(`${formatIdentity(identity)}\n`)], { mode: 'replace' });
    this.#take(identity);
  }

  #take(identity: VersionIdentity): void {
    this.#runId = identity.runId;
    this.#accepted = { identity, name: formatIdentity(identity) };
  }
}
