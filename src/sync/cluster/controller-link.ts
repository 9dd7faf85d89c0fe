/**
 * A member's line to its controller: heartbeats with what it holds and received, a call that waits for the next announcement, and the parent
 * it was given. Invariants: what is announced never goes back within a run, even if the controller lost its memory; what was reported is
 * kept until a heartbeat brought it; without a controller both loops go on looking for it.
 */
import { setTimeout as delay } from 'node:timers/promises';

import { z } from 'zod';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { parseIdentity } from '../version-directory.ts';
import {
  announcementSchema,
  heartbeatReplySchema,
  MEMBERS_PATH,
  parentReplySchema,
  POINTER_PATH,
  type Announcement,
  type CarriedObject,
  type Heartbeat,
  type MemberProgress,
  type ParentReport,
  type RelayCounts,
} from './cluster-protocol.ts';
import type { ControllerClient } from './controller-client.ts';
import type { TreeSource } from './tree-fetch.ts';

export type ControllerLinkEvent =
  | { readonly event: 'controller-found'; readonly controller: string; readonly cluster: string }
  | { readonly event: 'controller-lost'; readonly controller: string; readonly reason: string }
  /** Each call that brought nothing, before the first that did as well. */
  | { readonly event: 'controller-unheard'; readonly controller: string; readonly error: unknown };

export interface ControllerLinkOptions {
  readonly id: string;
  /** Tells this process from those before it under the same id. */
  readonly bootId: string;
  readonly client: ControllerClient;
  readonly peerUrl: () => string;
  readonly counts: () => RelayCounts;
  /** Takes in what came along with an announcement. Never rejects. */
  readonly takeIn: (object: CarriedObject) => Promise<void>;
  /** Uniform in [0, 1): the jitter between tries. */
  readonly random: () => number;
  readonly signal: AbortSignal;
  /** Another version was announced. */
  readonly onWake: () => void;
  readonly onEvent: (event: ControllerLinkEvent) => void;
}

const CALL_TIMEOUT_MS = 10_000;
const LONG_POLL_MS = 25_000;
const FIRST_HEARTBEAT_MS = 2_000;
const FIRST_RETRY_MS = 100;
const LAST_RETRY_MS = 2_000;
/** Of one heartbeat; more than these wait for the next. */
const MOST_REPORTED = 1000;

export class ControllerLink {
  readonly controller: TreeSource;
  readonly #options: ControllerLinkOptions;
  #parent: TreeSource | undefined;
  #announcement: Announcement | undefined;
  #held: Heartbeat['held'];
  #progress: MemberProgress[] = [];
  #received: string[] = [];
  #isControllerKnown = false;
  #heartbeatMs = FIRST_HEARTBEAT_MS;
  #isBeatWanted = false;
  #endWait: (() => void) | undefined;
  #loops: Promise<unknown> = Promise.resolve();

  constructor(options: ControllerLinkOptions) {
    this.#options = options;
    this.controller = { id: null, url: options.client.url };
    options.signal.addEventListener('abort', () => this.#endWait?.(), { once: true });
  }

  /** The parent of now; undefined while it was never told. */
  get parent(): TreeSource | undefined {
    return this.#parent;
  }

  /** The newest that was heard. */
  get announcement(): Announcement | undefined {
    return this.#announcement;
  }

  /** What the replica said last that it holds. */
  get held(): Heartbeat['held'] {
    return this.#held;
  }

  start(): void {
    this.#loops = Promise.all([this.#beatOnAndOn(), this.#listenOnAndOn()]);
  }

  /** Tells the controller, at once. */
  report(progress: MemberProgress): void {
    if (progress.kind !== 'staged')
      this.#held = { version: progress.version, ...(progress.runId === undefined ? {} : { runId: progress.runId }) };
    this.#progress.push(progress);
    this.#beat();
  }

  received(key: string): void {
    this.#received.push(key);
    this.#beat();
  }

  /** Once the signal is aborted: says goodbye, so that children get another parent at once. Never rejects. */
  async leave(): Promise<void> {
    const { client, id } = this.#options;
    this.#endWait?.();
    await this.#loops;
    if (!this.#isControllerKnown) return;
    await client
      .call({
        method: 'DELETE',
        path: `${MEMBERS_PATH}/${encodeURIComponent(id)}`,
        schema: z.unknown(),
        timeoutMs: 2_000,
        signal: AbortSignal.timeout(2_000),
      })
      .catch(() => undefined);
  }

  /** Never rejects: when the controller is away, the next heartbeat that reaches it brings a parent. */
  async reportParent(report: ParentReport): Promise<void> {
    try {
      const reply = await this.#options.client.call({
        method: 'POST',
        path: `${MEMBERS_PATH}/${encodeURIComponent(this.#options.id)}/reports`,
        body: report,
        schema: parentReplySchema,
        timeoutMs: CALL_TIMEOUT_MS,
        signal: this.#options.signal,
      });
      if (reply !== undefined) this.#parent = reply.parent ?? this.controller;
      else this.#beat();
    } catch (error) {
      this.#loseController(error);
    }
  }

  #beat(): void {
    this.#isBeatWanted = true;
    this.#endWait?.();
  }

  async #beatOnAndOn(): Promise<void> {
    let failures = 0;
    while (!this.#options.signal.aborted) {
      this.#isBeatWanted = false;
      const isHeard = await this.#sendHeartbeat();
      failures = isHeard ? 0 : failures + 1;
      if (this.#options.signal.aborted || (isHeard && this.#isBeatWanted)) continue;
      await this.#wait(isHeard ? this.#heartbeatMs : this.#retryMs(failures), isHeard);
    }
  }

  async #sendHeartbeat(): Promise<boolean> {
    const progress = this.#progress.slice(0, MOST_REPORTED);
    const received = this.#received.slice(0, MOST_REPORTED);
    const heartbeat: Heartbeat = {
      id: this.#options.id,
      bootId: this.#options.bootId,
      url: this.#options.peerUrl(),
      ...(this.#parent === undefined ? {} : { parent: this.#parent.id }),
      ...(this.#announcement === undefined ? {} : { heard: this.#announcement.serial }),
      ...(this.#held === undefined ? {} : { held: this.#held }),
      progress,
      received,
      counts: this.#options.counts(),
    };
    try {
      const reply = await this.#options.client.call({
        method: 'POST',
        path: MEMBERS_PATH,
        body: heartbeat,
        schema: heartbeatReplySchema,
        timeoutMs: CALL_TIMEOUT_MS,
        signal: this.#options.signal,
      });
      if (reply === undefined) throw this.#noController();
      this.#progress.splice(0, progress.length);
      this.#received.splice(0, received.length);
      this.#heartbeatMs = reply.leaseMs / 3;
      this.#parent = reply.parent ?? this.controller;
      if (!this.#isControllerKnown)
        this.#options.onEvent({
          event: 'controller-found',
          controller: this.#options.client.url,
          cluster: reply.cluster,
        });
      this.#isControllerKnown = true;
      if (reply.announcement !== null) await this.#hear(reply.announcement);
      return true;
    } catch (error) {
      this.#loseController(error);
      return false;
    }
  }

  /** Waits at the controller for the next announcement, so that a new version is known within a round trip. */
  async #listenOnAndOn(): Promise<void> {
    let failures = 0;
    while (!this.#options.signal.aborted) {
      const after = this.#announcement === undefined ? '' : `&after=${encodeURIComponent(this.#announcement.serial)}`;
      try {
        const announcement = await this.#options.client.call({
          method: 'GET',
          path: `${POINTER_PATH}?wait=${LONG_POLL_MS}${after}`,
          schema: announcementSchema.nullable(),
          timeoutMs: LONG_POLL_MS + CALL_TIMEOUT_MS,
          signal: this.#options.signal,
        });
        if (announcement === undefined) throw this.#noController();
        failures = 0;
        if (announcement !== null) await this.#hear(announcement);
      } catch (error) {
        this.#loseController(error);
        failures += 1;
        await delay(this.#retryMs(failures), undefined, { signal: this.#options.signal }).catch(() => undefined);
      }
    }
  }

  async #hear(announcement: Announcement): Promise<void> {
    const before = this.#announcement;
    if (before?.pointer !== undefined && before.pointer !== null) {
      if (announcement.pointer === null || isBehind(announcement.pointer, before.pointer)) {
        // A controller that lost its memory is behind for a while; the serial is taken, so that its next word is waited for.
        this.#announcement = { ...before, serial: announcement.serial };
        return;
      }
    }
    this.#announcement = announcement;
    await Promise.all(announcement.objects.map(async (object) => this.#options.takeIn(object)));
    if (before === undefined || announcement.pointer !== before.pointer) this.#options.onWake();
  }

  #noController(): HoneError {
    return new HoneError('store-unavailable', `${this.#options.client.url} is no cluster controller.`, {
      cure: 'Give the URL that hone serve controller prints.',
    });
  }

  #loseController(error: unknown): void {
    if (this.#options.signal.aborted) return;
    this.#options.onEvent({ event: 'controller-unheard', controller: this.#options.client.url, error });
    if (!this.#isControllerKnown) return;
    this.#isControllerKnown = false;
    this.#options.onEvent({ event: 'controller-lost', controller: this.#options.client.url, reason: reasonOf(error) });
  }

  #retryMs(failures: number): number {
    const { random } = this.#options;
    return random() * Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** failures);
  }

  /** Until time is up, or a heartbeat is wanted at once and the controller is there. */
  async #wait(waitMs: number, mayEnd: boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#endWait = (): void => {
        if (!mayEnd && !this.#options.signal.aborted) return;
        clearTimeout(timer);
        resolve();
      };
      if (this.#options.signal.aborted) this.#endWait();
    });
    this.#endWait = undefined;
  }
}

/** Whether an announced version is older than another one of the same run. */
function isBehind(pointer: string, before: string): boolean {
  try {
    const next = parseIdentity(pointer, 'The announced version');
    const last = parseIdentity(before, 'The announced version');
    return next.runId === last.runId && next.version < last.version;
  } catch {
    // What names no version is passed on: the reconciler says so and refuses it.
    return false;
  }
}
