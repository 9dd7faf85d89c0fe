/**
 * How a replica says no before the first event of a reply: status, outcome for the metrics, and a body with one sentence. Invariant:
 * an error that is no refusal yet becomes one by its code alone.
 */
import { HoneError, reasonOf } from '../domain/errors.ts';
import type { RequestOutcome } from './replica-metrics.ts';
import { errorBody } from './service/control-server.ts';
import { GENERATE_STATUS } from './wire/generate-wire.ts';

/** A refusal before the first event. */
export class Refusal extends Error {
  readonly status: number;
  readonly outcome: RequestOutcome;
  readonly body: ReturnType<typeof errorBody>;

  constructor(status: number, outcome: RequestOutcome, body: ReturnType<typeof errorBody>) {
    super(body.error.message);
    this.status = status;
    this.outcome = outcome;
    this.body = body;
  }
}

export function refusalOf(error: unknown): Refusal {
  if (!(error instanceof HoneError))
    return new Refusal(GENERATE_STATUS.unavailable, 'failed', errorBody('engine-failed', reasonOf(error)));
  const message = error.cure === undefined ? error.message : `${error.message} ${error.cure}`;
  switch (error.code) {
    case 'invalid-config':
    case 'context-too-small':
      return new Refusal(GENERATE_STATUS.invalid, 'invalid', errorBody(error.code, message));
    case 'aborted':
      return new Refusal(499, 'abort', errorBody(error.code, message));
    default:
      return new Refusal(GENERATE_STATUS.unavailable, 'failed', errorBody(error.code, message));
  }
}
