import fc from 'fast-check';
import { expect, test } from 'vitest';

import { HEALTH_LIMITS, newReplicaHealth, nextHealth } from './replica-health.ts';
import type { HealthEvent, HealthState, ReplicaHealth } from './replica-health.ts';

const ok: HealthEvent = { type: 'probe-ok' };
const failed: HealthEvent = { type: 'probe-failed', reason: 'no answer' };
const unready: HealthEvent = { type: 'probe-unready', reason: 'catching up' };
const lost: HealthEvent = { type: 'lease-lost' };
const over: HealthEvent = { type: 'gave-up', reason: 'said goodbye' };
const weights = (version: number): HealthEvent => ({ type: 'weights-reported', version });
const boot = (bootId: string, requiredVersion = 0, runId: string | undefined = 'run', atMs = 0): HealthEvent => ({
  type: 'registered',
  bootId,
  runId,
  requiredVersion,
  atMs,
});

function after(events: readonly HealthEvent[], start = newReplicaHealth('b1', 'run', 0)): ReplicaHealth {
  return events.reduce((health, event) => nextHealth(health, event), start);
}

const dead = [weights(5), failed, failed, failed];

test.each<[string, HealthState, HealthEvent[]]>([
  ['a first registration has no weights yet', 'RESTARTING', []],
  ['weights make it serve', 'HEALTHY', [weights(0)]],
  ['a failed probe makes it suspect', 'SUSPECT', [weights(5), failed]],
  ['one good probe is not enough', 'SUSPECT', [weights(5), failed, ok]],
  ['two good probes are', 'HEALTHY', [weights(5), failed, ok, ok]],
  ['a failure between good probes counts anew', 'SUSPECT', [weights(5), failed, ok, failed, ok]],
  ['two failed probes are borne', 'SUSPECT', [weights(5), failed, failed]],
  ['three are not', 'DEAD', dead],
  ['one that serves must be ready', 'DEAD', [weights(5), unready, unready, unready]],
  ['one that catches up need not be', 'RESTARTING', [unready, unready, unready, unready]],
  ['one that cannot be reached while it catches up is dead', 'DEAD', [failed, failed, failed]],
  ['a report of weights does not raise the dead', 'DEAD', [...dead, weights(9)]],
  ['a renewal does not, while probes fail', 'DEAD', [...dead, boot('b1'), weights(9)]],
  ['good probes bring it no further than stale', 'STALE', [...dead, boot('b1'), ok, ok]],
  ['weights below those that it had do not count', 'STALE', [...dead, ok, ok, weights(4)]],
  ['weights as new as those that it had do', 'HEALTHY', [...dead, ok, ok, weights(5)]],
  ['a lost lease is death', 'DEAD', [weights(5), lost]],
  ['good probes do not replace a lease', 'DEAD', [weights(5), lost, ok, ok, ok]],
  ['a renewal after it is no more than stale', 'STALE', [weights(5), lost, boot('b1')]],
  ['and asks for what the fleet serves', 'STALE', [weights(5), lost, boot('b1', 8), weights(7)]],
  ['which brings it back', 'HEALTHY', [weights(5), lost, boot('b1', 8), weights(8)]],
  ['another boot has to load weights', 'RESTARTING', [weights(5), boot('b2')]],
  ['at least those that it had', 'STALE', [weights(5), boot('b2'), weights(4)]],
  ['the boot model of no run among them', 'STALE', [weights(5), boot('b2', 0, undefined), weights(0)]],
  ['it serves once it has them', 'HEALTHY', [weights(5), boot('b2'), weights(4), weights(5)]],
  ['another run counts anew', 'HEALTHY', [weights(5), boot('b2', 0, 'other'), weights(1)]],
  ['versions of a boot do not go back', 'STALE', [weights(5), weights(4)]],
  ['and it serves again only where it was', 'HEALTHY', [weights(5), weights(4), weights(5)]],
  ['a boot that gave up is over', 'DEAD', [weights(5), over, boot('b1'), ok, ok, weights(9)]],
  ['another boot is not', 'HEALTHY', [weights(5), over, boot('b2'), weights(5)]],
  ['a probe that failed last keeps it suspect', 'SUSPECT', [failed, weights(5)]],
])('%s: %s', (_name, state, events) => {
  expect(after(events).state).toBe(state);
});

test('five restarts within the window are borne, the sixth retires; spread over time they are', () => {
  const restarts = (gapMs: number): ReplicaHealth =>
    Array.from({ length: 6 }).reduce<ReplicaHealth>(
      (health, _, index) => after([boot(`n${index}`, 0, 'run', index * gapMs), weights(5)], health),
      after([weights(5)]),
    );
  const retired = restarts(1_000);
  expect(retired.state).toBe('RETIRED');
  expect(after([ok, ok, boot('n9'), weights(9)], retired).state).toBe('RETIRED');
  expect(restarts(HEALTH_LIMITS.restartWindowMs / 4).state).toBe('HEALTHY');
});

test('whatever happens: no step from dead to healthy, no healthy one below what is required or behind itself', () => {
  const event: fc.Arbitrary<HealthEvent> = fc.oneof(
    fc.constantFrom(ok, failed, unready, lost),
    fc.integer({ min: 0, max: 9 }).map(weights),
    fc
      .tuple(fc.constantFrom('b1', 'b2', 'b3'), fc.integer({ min: 0, max: 9 }), fc.nat(10_000_000))
      .map(([id, required, atMs]) => boot(id, required, 'run', atMs)),
  );
  fc.assert(
    fc.property(fc.array(event, { maxLength: 60 }), (events) => {
      let health = newReplicaHealth('b1', 'run', 0);
      let served = 0;
      for (const one of events) {
        const next = nextHealth(health, one);
        if (health.state === 'DEAD') expect(next.state).not.toMatch(/HEALTHY|SUSPECT/);
        if (health.state === 'RETIRED') expect(next.state).toBe('RETIRED');
        if (next.state === 'HEALTHY') {
          expect(next.version).toBeGreaterThanOrEqual(Math.max(next.requiredVersion, served));
          served = next.version ?? 0;
        }
        health = next;
      }
    }),
    { numRuns: 400 },
  );
});

test('the reason follows the version that is served, and a suspicion keeps its own', () => {
  expect(after([weights(0), weights(3)]).reason).toBe('serves version 3');
  expect(after([weights(3), ok, ok, weights(3)]).reason).toBe('serves version 3');
  expect(after([weights(3), failed, weights(4)])).toMatchObject({ state: 'SUSPECT', reason: 'no answer', version: 4 });
});
