/** A router on free ports of the loopback with stand-in replicas in front of it, for the tests of the room. */
import { randomBytes } from 'node:crypto';

import { createRandom } from '../../domain/ids.ts';
import { DEFAULT_SAMPLING } from '../../domain/policy.ts';
import type { GenerateRequest } from '../../domain/policy.ts';
import { ServiceLog } from '../service/service-log.ts';
import { HttpTransport } from './http-transport.ts';
import { RemotePolicy } from './remote-policy.ts';
import type { GenerationResumed, RemotePolicyOptions } from './remote-policy.ts';
import { startRouter } from './router-server.ts';
import type { Router, RouterOptions } from './router-server.ts';
import { StandInReplica } from './stand-in-replica.fixture.ts';
import type { StandInOptions } from './stand-in-replica.fixture.ts';

export function routerOptions(options: Partial<RouterOptions> = {}): RouterOptions {
  const random = createRandom(7);
  return {
    id: 'router-1',
    host: '127.0.0.1',
    port: 0,
    controlPort: 0,
    token: undefined,
    leaseMs: 60_000,
    probe: { everyMs: 60_000, timeoutMs: 5_000 },
    log: new ServiceLog({ path: undefined, service: 'router', id: 'router-1', wallMs: () => 0 }),
    now: () => performance.now(),
    wallSeconds: () => 1_700_000_000,
    random: () => random.next(),
    newSecret: () => randomBytes(24).toString('base64url'),
    ...options,
  };
}

export interface Fleet extends AsyncDisposable {
  readonly router: Router;
  readonly replicas: readonly StandInReplica[];
  readonly resumed: GenerationResumed[];
  policy(options?: Partial<RemotePolicyOptions> & { token?: string; routers?: readonly string[] }): RemotePolicy;
}

/** Every replica is registered when this resolves. */
export async function startFleet({
  replicas: replicaOptions,
  ...options
}: Partial<RouterOptions> & { readonly replicas: readonly StandInOptions[] }): Promise<Fleet> {
  const router = await startRouter(routerOptions(options));
  const replicas = await Promise.all(replicaOptions.map((one) => StandInReplica.start(one)));
  const { token } = options;
  for (const replica of replicas) {
    const registration = replica.register([router.controlUrl], token === undefined ? {} : { token });
    await registration.renew();
  }
  const policies: RemotePolicy[] = [];
  const resumed: GenerationResumed[] = [];
  return {
    router,
    replicas,
    resumed,
    policy({ token: bearer = token, routers = [router.url], ...more } = {}) {
      const random = createRandom(11);
      let requests = 0;
      const policy = new RemotePolicy(new HttpTransport({ routers, token: bearer }), {
        now: () => performance.now(),
        random: () => random.next(),
        newRequestId: () => `request-${requests++}`,
        backoffMs: { first: 1, most: 20 },
        onEvent: (event) => resumed.push(event),
        ...more,
      });
      policies.push(policy);
      return policy;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(policies.map((policy) => policy.close()));
      await Promise.all(replicas.map((replica) => replica.close()));
      await router.close();
    },
  };
}

/** A request as a recorder makes it; the same for the same number. */
export function requestOf(
  number: number,
  { maxTokens = 24, ...more }: Partial<GenerateRequest> & { maxTokens?: number } = {},
): GenerateRequest {
  return {
    tokens: Int32Array.from({ length: 9 }, (_, index) => (number * 31 + index * 7) % 1000),
    sampling: { ...DEFAULT_SAMPLING, maxTokens, stopIds: [] },
    seed: number,
    ...more,
  };
}

/** The request in the form that a stand-in reads. */
export function decodedOf(request: GenerateRequest) {
  const { tokens, sampling, seed, drawnBefore = 0, minVersion, exactVersion, session } = request;
  return { tokens, sampling, seed, drawnBefore, minVersion, exactVersion, session, keptSets: 'inline' as const };
}

/** Resolves when the condition holds; looks again after every turn of the event loop, and gives up after the deadline. */
export async function until(condition: () => boolean | Promise<boolean>, deadlineMs = 30_000): Promise<void> {
  const untilMs = performance.now() + deadlineMs;
  while (!(await condition())) {
    if (performance.now() > untilMs) throw new Error('the condition did not come to hold in time');
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
