/**
 * What a replica says when it is not connected as it was meant to be: to its routers, to its cluster's controller, to the weights that it
 * follows. It reads the events of those three and owns the words. Invariant: what comes from a controller that is not heard is told
 * as that, not again as weights that cannot be read.
 */
import { HoneError } from '../domain/errors.ts';
import type { ClusterMemberEvent } from '../sync/cluster/cluster-member.ts';
import type { ReconcilerEvent } from '../sync/reconciler.ts';
import type { RegistrationEvent } from './router/registration.ts';
import { ServiceProblems, type ServiceProblem, type ServiceProblemsOptions } from './service-problems.ts';

export interface ReplicaProblemsOptions extends ServiceProblemsOptions {
  /** Whether weights come through a controller. */
  readonly followsController: boolean;
  readonly hasToken: boolean;
}

/** Services may be started in any order. */
const START_ORDER_MS = 5_000;
const WEIGHTS = 'weights';

export class ReplicaProblems {
  readonly #options: ReplicaProblemsOptions;
  readonly #problems: ServiceProblems;
  #isControllerAway: boolean;

  constructor(options: ReplicaProblemsOptions) {
    this.#options = options;
    this.#problems = new ServiceProblems(options);
    this.#isControllerAway = options.followsController;
  }

  list(): readonly ServiceProblem[] {
    return this.#problems.list();
  }

  /** Of one of the routers that the replica registers at. */
  router(event: RegistrationEvent): void {
    const about = `router ${event.router}`;
    switch (event.type) {
      case 'router-unheard':
        this.#problems.meet(about, event.error, { graceMs: graceOf(event.error, 'no-replica') });
        return;
      case 'registered':
        this.#problems.over(about, `It is registered at the router ${event.router} now.`);
        return;
      case 'router-lost':
        return;
      default:
        event satisfies never;
    }
  }

  /** Of the cluster that the weights come through. */
  cluster(event: ClusterMemberEvent): void {
    switch (event.event) {
      case 'controller-unheard': {
        const { controller, error } = event;
        const told = isUnauthorized(error) ? this.#unauthorized(controller) : error;
        this.#isControllerAway = true;
        this.#problems.meet('controller', told, { graceMs: graceOf(error, 'store-unavailable') });
        return;
      }
      case 'controller-found':
        this.#isControllerAway = false;
        this.#problems.over('controller', `It hears the cluster controller ${event.controller} now.`);
        return;
      case 'controller-lost':
      case 'parent-failed':
      case 'object-received':
      case 'chunk-damaged':
        return;
      default:
        event satisfies never;
    }
  }

  /** Of the weights themselves. */
  weights(event: ReconcilerEvent): void {
    switch (event.type) {
      case 'sync-retry':
      case 'sync-refused': {
        const isOfController = event.error instanceof HoneError && event.error.code === 'store-unavailable';
        if (!(isOfController && this.#isControllerAway)) this.#problems.meet(WEIGHTS, event.error);
        return;
      }
      case 'sync-recovered':
        this.#problems.over(WEIGHTS, 'It follows the weights again.');
        return;
      case 'weights-committed':
      case 'weights-reseeded':
      case 'sync-failed':
        return;
      default:
        event satisfies never;
    }
  }

  #unauthorized(controller: string): HoneError {
    const given = this.#options.hasToken ? 'the one given here is another' : 'none is given here';
    return new HoneError(
      'unauthorized',
      `The cluster controller ${controller} lets in only who has its token, and ${given}.`,
      { cure: 'Set HONE_TOKEN to the same secret for controller and replicas.' },
    );
  }
}

function isUnauthorized(error: unknown): boolean {
  return error instanceof HoneError && error.code === 'unauthorized';
}

/** Who does not answer may not be started yet; who answers wrongly will go on doing so. */
function graceOf(error: unknown, code: HoneError['code']): number {
  return error instanceof HoneError && error.code === code ? START_ORDER_MS : 0;
}
