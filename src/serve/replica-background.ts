/**
 * Work that a replica does between decode steps, in slices: staging tensors, copying those that stay, reading back what is served.
 * One job at a time, in order. Invariant: a turn takes no longer than its budget and one slice.
 */

/** Each `next` does one slice. */
export interface BackgroundJob {
  readonly slices: Iterator<undefined, unknown>;
  readonly onDone: (result: unknown) => void;
  readonly onFailed: (error: unknown) => void;
}

export class BackgroundWork {
  readonly #jobs: BackgroundJob[] = [];

  get isIdle(): boolean {
    return this.#jobs.length === 0;
  }

  add(job: BackgroundJob): void {
    this.#jobs.push(job);
  }

  /** Does slices until the budget is used; at least one when there is work, so that it ends whatever the load. */
  run(budgetMs: number): void {
    const end = performance.now() + budgetMs;
    for (let job = this.#jobs[0]; job !== undefined; job = this.#jobs[0]) {
      try {
        const { done, value } = job.slices.next();
        if (done === true) {
          this.#jobs.shift();
          job.onDone(value);
        }
      } catch (error) {
        this.#jobs.shift();
        job.onFailed(error);
      }
      if (performance.now() >= end) return;
    }
  }
}
