/**
 * Whether one replica may serve: a pure machine of six states, fed with what was seen of it (probes, lease, registrations, weight
 * loads). It owns no clock and no network. Invariants: nothing leads from DEAD to HEALTHY in one event; a replica that was dead
 * serves only after a weight load at or above what is required; the versions that one boot of a run serves never go back.
 *
 *   HEALTHY    serves
 *   SUSPECT    a probe failed; serves only where no healthy replica can; good probes bring it back
 *   DEAD       probes kept failing, or its lease ended, or it said so itself
 *   RESTARTING a new boot has registered and has not reported weights yet
 *   STALE      alive, with weights older than required, or not reported since it was dead
 *   RETIRED    was restarted too often; left out until an operator removes it
 */

export type HealthState = 'HEALTHY' | 'SUSPECT' | 'DEAD' | 'RESTARTING' | 'STALE' | 'RETIRED';
export const HEALTH_STATES: readonly HealthState[] = ['HEALTHY', 'SUSPECT', 'DEAD', 'RESTARTING', 'STALE', 'RETIRED'];

export interface HealthLimits {
  /** Failed probes in a row until a replica counts as dead. */
  readonly failedProbes: number;
  /** Good probes in a row until one that failed counts as alive again. */
  readonly goodProbes: number;
  /** Restarts within the window that are borne; one more retires the replica. */
  readonly restarts: number;
  readonly restartWindowMs: number;
}

export const HEALTH_LIMITS: HealthLimits = {
  failedProbes: 3,
  goodProbes: 2,
  restarts: 5,
  restartWindowMs: 600_000,
};

export interface ReplicaHealth {
  readonly state: HealthState;
  /** For people: why it is in this state. */
  readonly reason: string;
  readonly bootId: string;
  readonly runId: string | undefined;
  /** Newest version that this boot reported of this run; undefined until it reported one. */
  readonly version: number | undefined;
  /** It serves nothing before it reports at least this version of the run. */
  readonly requiredVersion: number;
  readonly failedProbes: number;
  readonly goodProbes: number;
  /** Whether it is registered now: what good probes of a replica that let its lease end do not replace. */
  readonly isLeased: boolean;
  /** This boot said that it will not serve again; only another boot can. */
  readonly isOver: boolean;
  /** Monotone times of the restarts within the window. */
  readonly restartsAtMs: readonly number[];
}

export type HealthEvent =
  /** A registration or renewal. `requiredVersion`: what the fleet asks of one that comes back. */
  | {
      readonly type: 'registered';
      readonly bootId: string;
      readonly runId: string | undefined;
      readonly requiredVersion: number;
      readonly atMs: number;
    }
  /** The boot that is registered serves this version now. */
  | { readonly type: 'weights-reported'; readonly version: number }
  | { readonly type: 'probe-ok' }
  /** It answered that it isn't ready: alive, not serving. */
  | { readonly type: 'probe-unready'; readonly reason: string }
  /** No answer in time, or none at all. */
  | { readonly type: 'probe-failed'; readonly reason: string }
  | { readonly type: 'lease-lost' }
  /** It said that it cannot serve again before it is restarted, or said goodbye. */
  | { readonly type: 'gave-up'; readonly reason: string };

/** A replica that nothing is known of yet. */
export function newReplicaHealth(bootId: string, runId: string | undefined, requiredVersion: number): ReplicaHealth {
  return {
    state: 'RESTARTING',
    reason: 'registered; no weights reported yet',
    bootId,
    runId,
    version: undefined,
    requiredVersion,
    failedProbes: 0,
    goodProbes: 0,
    isLeased: true,
    isOver: false,
    restartsAtMs: [],
  };
}

export function nextHealth(
  health: ReplicaHealth,
  event: HealthEvent,
  limits: HealthLimits = HEALTH_LIMITS,
): ReplicaHealth {
  if (health.state === 'RETIRED') return health;
  switch (event.type) {
    case 'registered':
      return event.bootId === health.bootId ? renewed(health, event) : restarted(health, event, limits);
    case 'weights-reported':
      return reported(health, event.version);
    case 'probe-ok':
      return probedGood(health, limits);
    case 'probe-unready':
      // One that is catching up says so for as long as it takes.
      if (health.state === 'RESTARTING' || health.state === 'STALE')
        return { ...health, failedProbes: 0, goodProbes: 0 };
      return probedBad(health, event.reason, limits);
    case 'probe-failed':
      return probedBad(health, event.reason, limits);
    case 'lease-lost':
      return dead({ ...health, isLeased: false }, 'its lease ended without a renewal');
    case 'gave-up':
      return dead({ ...health, isLeased: false, isOver: true }, event.reason);
    default:
      event satisfies never;
      return health;
  }
}

type Registered = Extract<HealthEvent, { type: 'registered' }>;

/** Whether versions of the two can be compared. The boot model belongs to every run, as its version 0. */
function isOneRun(one: string | undefined, other: string | undefined): boolean {
  return one === other || one === undefined || other === undefined;
}

/** The same boot again. One that went over to another run counts its versions anew. */
function renewed(health: ReplicaHealth, event: Registered): ReplicaHealth {
  if (health.isOver) return health;
  const leased: ReplicaHealth = { ...health, isLeased: true, runId: event.runId ?? health.runId };
  const isOtherRun = !isOneRun(health.runId, event.runId);
  const known = isOtherRun ? { ...leased, version: undefined, requiredVersion: event.requiredVersion } : leased;
  if (health.state !== 'DEAD')
    return isOtherRun && health.state !== 'RESTARTING' ? stale(known, `went over to run ${event.runId}`) : known;
  const requiredVersion = Math.max(known.requiredVersion, event.requiredVersion, known.version ?? 0);
  const waiting = { ...known, requiredVersion };
  // Where probes failed, good ones let it out; a lease alone proves no more than that its timer runs.
  return health.failedProbes > 0 ? waiting : stale(waiting, 'was dead; its weights are not reported since');
}

function restarted(health: ReplicaHealth, event: Registered, limits: HealthLimits): ReplicaHealth {
  const recent = health.restartsAtMs.filter((atMs) => event.atMs - atMs < limits.restartWindowMs);
  const restartsAtMs = [...recent, event.atMs];
  const served = Math.max(health.requiredVersion, health.version ?? 0);
  const floor = isOneRun(health.runId, event.runId) ? served : 0;
  const boot: ReplicaHealth = {
    ...newReplicaHealth(event.bootId, event.runId, Math.max(floor, event.requiredVersion)),
    reason: 'restarted; no weights reported yet',
    restartsAtMs,
  };
  if (restartsAtMs.length <= limits.restarts) return boot;
  const minutes = Number((limits.restartWindowMs / 60_000).toFixed(1));
  const reason = `was restarted ${restartsAtMs.length} times within ${minutes} minutes, and ${limits.restarts} are borne; look at its log, then free it with DELETE /replicas/<id> on the router's control port`;
  return { ...boot, state: 'RETIRED', reason };
}

function reported(health: ReplicaHealth, version: number): ReplicaHealth {
  if (health.state === 'DEAD') return health;
  if (health.version !== undefined && version < health.version)
    return {
      ...stale(health, `reported version ${version} after ${health.version}`),
      requiredVersion: Math.max(health.requiredVersion, health.version),
    };
  const known = { ...health, version };
  if (version < health.requiredVersion)
    return stale(known, `serves version ${version}; ${health.requiredVersion} is required`);
  if (health.state === 'HEALTHY' && version !== health.version)
    return { ...known, reason: `serves version ${version}` };
  if (health.state !== 'RESTARTING' && health.state !== 'STALE') return known;
  if (health.failedProbes > 0)
    return { ...known, state: 'SUSPECT', reason: 'has its weights; its last probe failed', goodProbes: 0 };
  return { ...known, state: 'HEALTHY', reason: `serves version ${version}` };
}

function probedGood(health: ReplicaHealth, limits: HealthLimits): ReplicaHealth {
  const goodProbes = health.goodProbes + 1;
  if (goodProbes < limits.goodProbes) return { ...health, goodProbes };
  const alive = { ...health, goodProbes, failedProbes: 0 };
  if (health.state === 'SUSPECT') return { ...alive, state: 'HEALTHY', reason: `${goodProbes} good probes` };
  if (health.state !== 'DEAD' || !health.isLeased || health.isOver) return alive;
  return {
    ...stale(alive, 'was dead; its weights are not reported since'),
    requiredVersion: Math.max(health.requiredVersion, health.version ?? 0),
  };
}

function probedBad(health: ReplicaHealth, reason: string, limits: HealthLimits): ReplicaHealth {
  const failedProbes = health.failedProbes + 1;
  const bad = { ...health, failedProbes, goodProbes: 0 };
  if (health.state === 'DEAD') return bad;
  if (failedProbes >= limits.failedProbes) return dead(bad, `${failedProbes} probes failed: ${reason}`);
  return health.state === 'HEALTHY' || health.state === 'SUSPECT' ? { ...bad, state: 'SUSPECT', reason } : bad;
}

function stale(health: ReplicaHealth, reason: string): ReplicaHealth {
  return { ...health, state: 'STALE', reason };
}

/** A replica whose lease ended keeps its count of failed probes, so that it can come back by its lease where they were good. */
function dead(health: ReplicaHealth, reason: string): ReplicaHealth {
  if (health.state === 'DEAD') return health;
  return { ...health, state: 'DEAD', reason, goodProbes: 0 };
}
