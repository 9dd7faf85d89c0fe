/**
 * The replicas that a router knows: leases, health, load, breaker and the prefixes that each one was sent. Leases end by a
 * monotone clock, so that a jump of the wall clock does nothing. Invariant: every change of a replica's state goes through the
 * health machine and is told with its reason; what the router holds of a replica is one entry, made by its first registration.
 */
import { HoneError } from '../../domain/errors.ts';
import { CircuitBreaker } from './circuit-breaker.ts';
import { PrefixIndex } from './prefix-index.ts';
import { MOST_SERVED_KINDS, type ServedModel } from './generate-transport.ts';
import type { ReplicaDescription } from './registration.ts';
import { HEALTH_LIMITS, newReplicaHealth, nextHealth } from './replica-health.ts';
import type { HealthEvent, HealthLimits, HealthState, ReplicaHealth } from './replica-health.ts';

export interface RegistryOptions {
  readonly leaseMs: number;
  /** Monotone milliseconds. */
  readonly now: () => number;
  readonly limits?: HealthLimits;
  readonly onChange?: (change: StateChange) => void;
  /** Entries at most; registrations of further ids are refused. */
  readonly mostReplicas?: number;
}

export interface StateChange {
  readonly replica: string;
  readonly url: string;
  readonly from: HealthState | 'NEW' | 'FORGOTTEN';
  readonly to: HealthState | 'FORGOTTEN';
  readonly reason: string;
}

export class ReplicaEntry {
  description: ReplicaDescription;
  health: ReplicaHealth;
  /** Undefined for a replica that was named to the router and holds no lease. */
  leaseUntilMs: number | undefined;
  lastSeenMs: number;
  /** Requests that this router has under way at it. */
  inFlight = 0;
  /** Of them, those that were under way when it last described itself: what it reported beyond them came by others. */
  inFlightAtReport = 0;
  readonly breaker = new CircuitBreaker();
  readonly prefixes = new PrefixIndex();
  readonly counts = { requests: 0, failures: 0 };

  constructor(description: ReplicaDescription, health: ReplicaHealth, lastSeenMs: number) {
    this.description = description;
    this.health = health;
    this.lastSeenMs = lastSeenMs;
  }

  get id(): string {
    return this.description.id;
  }

  /** Requests that it has, of this router (known to the moment) and of others (as it last said). */
  get load(): number {
    const { running, waiting } = this.description;
    return this.inFlight + Math.max(0, running + waiting - this.inFlightAtReport);
  }
}

/** A dead replica that nobody heard of for so long is forgotten, and its floor with it. */
const FORGET_AFTER_MS = 3_600_000;

export class ReplicaRegistry {
  readonly #options: RegistryOptions;
  readonly #entries = new Map<string, ReplicaEntry>();

  /** When leases were looked at last. */
  #lookedMs: number;

  constructor(options: RegistryOptions) {
    this.#options = options;
    this.#lookedMs = options.now();
  }

  get leaseMs(): number {
    return this.#options.leaseMs;
  }

  entries(): Iterable<ReplicaEntry> {
    return this.#entries.values();
  }

  get(id: string): ReplicaEntry | undefined {
    return this.#entries.get(id);
  }

  /** A registration or renewal. Rejects a new id when the registry is full. */
  register(description: ReplicaDescription, { isFixed = false }: { isFixed?: boolean } = {}): ReplicaEntry {
    const { now, leaseMs, mostReplicas = 4096 } = this.#options;
    const atMs = now();
    const requiredVersion = this.#requiredVersion(description);
    let entry = this.#entries.get(description.id);
    if (entry === undefined) {
      if (this.#entries.size >= mostReplicas)
        throw new HoneError(
          'invalid-config',
          `The router has ${mostReplicas} replicas; ${description.id} is one more.`,
          {
            cure: 'Start another router, or give restarted replicas the ids that they had.',
          },
        );
      const health = newReplicaHealth(description.bootId, description.runId, requiredVersion);
      entry = new ReplicaEntry(description, health, atMs);
      this.#entries.set(description.id, entry);
      this.#changed(entry, 'NEW');
    } else {
      if (entry.description.bootId !== description.bootId) {
        entry.breaker.reset();
        entry.prefixes.clear();
      }
      entry.description = description;
      const { bootId, runId } = description;
      this.report(entry, { type: 'registered', bootId, runId, requiredVersion, atMs });
    }
    entry.lastSeenMs = atMs;
    entry.leaseUntilMs = isFixed ? undefined : atMs + leaseMs;
    entry.inFlightAtReport = entry.inFlight;
    if (description.state === 'failed')
      this.report(entry, { type: 'gave-up', reason: 'said that it cannot serve any more' });
    if (description.state === 'serving') this.report(entry, { type: 'weights-reported', version: description.version });
    return entry;
  }

  /** A goodbye. One of an older boot is too late to mean anything. */
  leave(id: string, bootId: string): boolean {
    const entry = this.#entries.get(id);
    if (entry === undefined || entry.description.bootId !== bootId) return false;
    entry.leaseUntilMs = undefined;
    this.report(entry, { type: 'gave-up', reason: 'said goodbye' });
    return true;
  }

  /** An operator's word: whatever the replica was, it starts anew with its next registration. */
  forget(id: string): boolean {
    const entry = this.#entries.get(id);
    if (entry === undefined) return false;
    this.#entries.delete(id);
    const { url } = entry.description;
    this.#options.onChange?.({ replica: id, url, from: entry.health.state, to: 'FORGOTTEN', reason: 'was removed' });
    return true;
  }

  report(entry: ReplicaEntry, event: HealthEvent): void {
    const from = entry.health.state;
    entry.health = nextHealth(entry.health, event, this.#options.limits ?? HEALTH_LIMITS);
    if (from !== entry.health.state) this.#changed(entry, from);
  }

  /**
   * A replica's own answer named the version that it serves, newer than its last description. A hint for the choice alone: a
   * description that was on its way meanwhile must not look as if versions went back.
   */
  noteServed(entry: ReplicaEntry, version: number): void {
    if (version > entry.description.version) entry.description = { ...entry.description, version };
  }

  /** It answered that it does not serve; its next description says when it does again. */
  noteUnavailable(entry: ReplicaEntry): void {
    if (entry.description.state === 'serving') entry.description = { ...entry.description, state: 'closing' };
  }

  /**
   * Ends leases that were not renewed, and forgets what has been dead for long. A router that itself stood still could take no
   * renewal meanwhile, so that time does not count against anybody.
   */
  expire(): void {
    const nowMs = this.#options.now();
    const stoodMs = nowMs - this.#lookedMs;
    this.#lookedMs = nowMs;
    if (stoodMs > this.#options.leaseMs / 2)
      for (const entry of this.#entries.values()) if (entry.leaseUntilMs !== undefined) entry.leaseUntilMs += stoodMs;
    for (const entry of this.#entries.values()) {
      if (entry.leaseUntilMs !== undefined && nowMs >= entry.leaseUntilMs) {
        entry.leaseUntilMs = undefined;
        this.report(entry, { type: 'lease-lost' });
      }
      const isGone = entry.health.state === 'DEAD' && entry.inFlight === 0;
      if (isGone && !entry.health.isLeased && nowMs - entry.lastSeenMs >= FORGET_AFTER_MS) this.forget(entry.id);
    }
  }

  /** Newest version that a serving replica has; undefined where none serves. */
  newestVersion(): number | undefined {
    let newest: number | undefined;
    for (const { health, description } of this.#entries.values())
      if (health.state === 'HEALTHY' || health.state === 'SUSPECT') newest = Math.max(newest ?? 0, description.version);
    return newest;
  }

  /** Tokens that every serving replica has room for; undefined where none serves. */
  contextLength(): number | undefined {
    let least: number | undefined;
    for (const { health, description } of this.#entries.values())
      if (health.state === 'HEALTHY' || health.state === 'SUSPECT')
        least = Math.min(least ?? Infinity, description.contextLength);
    return least;
  }

  /** What serving replicas sample from, each kind once; no more than a client can look through. */
  servedModels(): ServedModel[] {
    const kinds = new Map<string, ServedModel>();
    for (const { id, health, description } of this.#entries.values()) {
      if (health.state !== 'HEALTHY' && health.state !== 'SUSPECT') continue;
      const { model } = description;
      const { version, imageChecksum } = description.weights;
      const kind = `${model} ${version} ${imageChecksum}`;
      if (!kinds.has(kind) && kinds.size < MOST_SERVED_KINDS)
        kinds.set(kind, { replica: id, model, version, imageChecksum });
    }
    return [...kinds.values()];
  }

  #changed({ id, description: { url }, health: { state: to, reason } }: ReplicaEntry, from: StateChange['from']): void {
    this.#options.onChange?.({ replica: id, url, from, to, reason });
  }

  /** What one that comes or comes back must have loaded: the oldest version that the fleet still serves of its run. */
  #requiredVersion({ id, runId }: ReplicaDescription): number {
    let oldest: number | undefined;
    for (const { health, description } of this.#entries.values()) {
      const isOneRun = runId === undefined || description.runId === undefined || description.runId === runId;
      if (description.id !== id && health.state === 'HEALTHY' && isOneRun)
        oldest = Math.min(oldest ?? Infinity, description.version);
    }
    return oldest ?? 0;
  }
}
