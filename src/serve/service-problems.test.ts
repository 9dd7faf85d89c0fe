import { describe, expect, test } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import type { ReconcilerEvent } from '../sync/reconciler.ts';
import { ControllerProblems } from './controller-problems.ts';
import { ReplicaProblems } from './replica-problems.ts';
import { ServiceProblems } from './service-problems.ts';

function listen() {
  const said: string[] = [];
  const events: object[] = [];
  const clock = { ms: 0 };
  return {
    said,
    events,
    clock,
    options: {
      say: (sentence: string) => void said.push(sentence),
      onEvent: (event: object) => void events.push(event),
      wallMs: () => 1000 + clock.ms,
      now: () => clock.ms,
    },
  };
}

const unavailable = (message: string): HoneError => new HoneError('store-unavailable', message, { cure: 'Look.' });

describe('problems of a service', () => {
  test('each is said once with its cure, however often it is met, and its end once', () => {
    const { options, said, events, clock } = listen();
    const problems = new ServiceProblems(options);
    for (const message of ['No disk', 'No link.', 'No disk', 'No link.']) {
      problems.meet('store', unavailable(message));
      clock.ms += 60_000;
    }
    expect(said).toEqual(['No disk. Look.', 'No link. Look.']);
    expect(problems.list()).toEqual([{ about: 'store', problem: 'No link. Look.', sinceMs: 1000 }]);
    clock.ms = 300_070;
    problems.over('store', 'It is back.');
    problems.over('store', 'It is back.');
    expect(said.slice(2)).toEqual(['It is back.']);
    expect(events.at(-1)).toEqual({ event: 'problem-over', about: 'store', lastedMs: 300_070 });
    expect(problems.list()).toEqual([]);
    // Back at once it is shown, and said only when some time has passed; then its end is as well.
    problems.meet('store', unavailable('No disk'));
    problems.over('store', 'It is back.');
    expect(said.splice(3)).toEqual(['No disk. Look.', 'It is back.']);
    problems.meet('store', unavailable('No disk'));
    expect(problems.list()).toHaveLength(1);
    problems.over('store', 'It is back.');
    expect(said.slice(3)).toEqual([]);
    clock.ms += 10_000;
    problems.meet('store', unavailable('No disk'));
    problems.over('store', 'It is back.');
    expect(said.slice(3)).toEqual(['No disk. Look.', 'It is back.']);
  });

  test('one that passes within its grace is shown and not said, nor is its end', () => {
    const { options, said, clock } = listen();
    const problems = new ServiceProblems(options);
    problems.meet('router', unavailable('Away.'), { graceMs: 50 });
    expect(problems.list()).toHaveLength(1);
    problems.over('router', 'It is there.');
    expect(said).toEqual([]);
    problems.meet('router', unavailable('Away.'), { graceMs: 50 });
    clock.ms = 50;
    problems.meet('router', unavailable('Away.'), { graceMs: 50 });
    problems.over('router', 'It is there.');
    expect(said).toEqual(['Away. Look.', 'It is there.']);
  });

  test('sentences that change at every try do not flood', () => {
    const { options, said } = listen();
    const problems = new ServiceProblems(options);
    for (let count = 0; count < 100; count++) problems.meet('store', unavailable(`Try ${count} failed.`));
    expect(said).toHaveLength(8);
  });
});

describe('problems of a replica', () => {
  const retry = (error: HoneError): ReconcilerEvent => ({
    type: 'sync-retry',
    version: policyVersion(0),
    reason: error.message,
    error,
  });
  const controller = 'http://c';

  test('what a controller that is not heard keeps back is said of the controller alone', () => {
    const { options, said, clock } = listen();
    const problems = new ReplicaProblems({ ...options, followsController: true, hasToken: false });
    const unheard = { event: 'controller-unheard', controller, error: unavailable('It is away.') } as const;
    for (clock.ms = 0; clock.ms < 8000; clock.ms += 1000) {
      problems.weights(retry(unavailable('It was not heard yet.')));
      problems.cluster(unheard);
    }
    expect(said).toEqual(['It is away. Look.']);
    problems.cluster({ event: 'controller-found', controller, cluster: 'west' });
    problems.weights(retry(unavailable('The store is away.')));
    problems.weights({ type: 'sync-recovered', version: policyVersion(0) });
    expect(said.slice(1)).toEqual([
      'It hears the cluster controller http://c now.',
      'The store is away. Look.',
      'It follows the weights again.',
    ]);
    // Damage is told whoever is away.
    problems.cluster(unheard);
    problems.weights(retry(new HoneError('checksum-mismatch', 'It is damaged.')));
    expect(said.at(-1)).toBe('It is damaged.');
  });

  test('a router that does not answer may start later; one that answers wrongly is said at once', () => {
    const { options, said, clock } = listen();
    const problems = new ReplicaProblems({ ...options, followsController: false, hasToken: false });
    const unheard = (error: HoneError): void => problems.router({ type: 'router-unheard', router: 'http://r', error });
    unheard(new HoneError('no-replica', 'It does not answer.'));
    problems.router({ type: 'registered', router: 'http://r', leaseMs: 1 });
    expect(said).toEqual([]);
    unheard(new HoneError('unauthorized', 'It lets nobody in.'));
    problems.router({ type: 'registered', router: 'http://r', leaseMs: 1 });
    unheard(new HoneError('no-replica', 'It does not answer.'));
    clock.ms = 5000;
    unheard(new HoneError('no-replica', 'It does not answer.'));
    expect(said).toEqual(['It lets nobody in.', 'It is registered at the router http://r now.', 'It does not answer.']);
  });

  test('a token that the controller does not take is said at once, whichever call meets it', () => {
    const { options, said } = listen();
    const problems = new ReplicaProblems({ ...options, followsController: true, hasToken: true });
    for (const path of ['/members', '/pointer'])
      problems.cluster({ event: 'controller-unheard', controller, error: new HoneError('unauthorized', path) });
    expect(said).toEqual([
      'The cluster controller http://c lets in only who has its token, and the one given here is another. Set HONE_TOKEN to the same secret for controller and replicas.',
    ]);
  });
});

test('a controller goes on saying that a pointer is refused until the store names another', () => {
  const { options, said } = listen();
  const problems = new ControllerProblems({ ...options, location: './store' });
  problems.note({ event: 'store-answered', pointer: null });
  problems.note({ event: 'store-answered', pointer: null });
  problems.note({ event: 'version-seen', version: 'own/weight_v000001', publishedMs: undefined });
  problems.note({ event: 'version-seen', version: 'own/weight_v000002', publishedMs: undefined });
  problems.note({ event: 'version-refused', pointer: 'other/weight_v000001', reason: 'It is of another run.' });
  problems.note({ event: 'store-answered', pointer: 'other/weight_v000001' });
  problems.note({ event: 'store-retry', what: 'latest', reason: 'Gone.', cure: 'Mount it.' });
  problems.note({ event: 'store-answered', pointer: 'other/weight_v000001' });
  expect(problems.list().map(({ about }) => about)).toEqual(['pointer']);
  problems.note({ event: 'store-answered', pointer: 'own/weight_v000001' });
  expect(said).toEqual([
    'Nothing is published in ./store yet.',
    'own/weight_v000001 is the first that is published.',
    'It is of another run.',
    'Gone. Mount it.',
    'It reads ./store again.',
    'It follows the pointer of ./store again.',
  ]);
  expect(problems.list()).toEqual([]);
});
