/**
 * What a cluster's controller says of its store: that it cannot be read, that its pointer may not be followed, that a version does not come,
 * that there is none yet. It reads the controller's events and owns the words.
 */
import { HoneError } from '../domain/errors.ts';
import type { ControllerEvent } from '../sync/cluster/cluster-controller.ts';
import { LATEST_POINTER } from '../sync/version-directory.ts';
import { ServiceProblems, type ServiceProblem, type ServiceProblemsOptions } from './service-problems.ts';

export interface ControllerProblemsOptions extends ServiceProblemsOptions {
  readonly location: string;
}

const STORE = 'store';
const POINTER = 'pointer';
const VERSION = 'version';

export class ControllerProblems {
  readonly #options: ControllerProblemsOptions;
  readonly #problems: ServiceProblems;
  #refused: string | undefined;
  #isEmptySaid = false;

  constructor(options: ControllerProblemsOptions) {
    this.#options = options;
    this.#problems = new ServiceProblems(options);
  }

  list(): readonly ServiceProblem[] {
    return this.#problems.list();
  }

  note(event: ControllerEvent): void {
    const { location, say } = this.#options;
    switch (event.event) {
      case 'store-retry': {
        const error = new HoneError('store-failed', event.reason, event.cure === undefined ? {} : { cure: event.cure });
        if (event.what === LATEST_POINTER) this.#problems.meet(STORE, error);
        else if (event.what.includes('/weight_v')) this.#problems.meet(VERSION, error);
        else this.#problems.remark(event.what, error);
        return;
      }
      case 'store-answered':
        this.#problems.over(STORE, `It reads ${location} again.`);
        if (event.pointer !== this.#refused)
          this.#problems.over(POINTER, `It follows the pointer of ${location} again.`);
        if (event.pointer === null && !this.#isEmptySaid) say(`Nothing is published in ${location} yet.`);
        this.#isEmptySaid = event.pointer === null;
        return;
      case 'version-refused':
        this.#refused = event.pointer;
        this.#problems.meet(POINTER, event.reason);
        return;
      case 'version-fetched':
        this.#problems.over(VERSION, `It has ${event.version} whole now.`);
        return;
      case 'version-seen':
        if (this.#isEmptySaid) say(`${event.version} is the first that is published.`);
        this.#isEmptySaid = false;
        return;
      case 'object-fetched':
      case 'chunk-damaged':
      case 'member-joined':
      case 'member-lost':
      case 'parent-replaced':
        return;
      default:
        event satisfies never;
    }
  }
}
