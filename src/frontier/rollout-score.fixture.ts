/** For tests: the score of a single rollout, the oracle that gradients from sums are held to. */
import { HoneError } from '../domain/errors.ts';
import { sigmoid } from './toy-task.ts';

interface ToyScore {
  readonly logProbability: number;
  /** d log pi / d logit of the input that was seen; the other input's is 0. */
  readonly logit: number;
  /** d log pi / d log cost of the rollout's effort; the other efforts' are 0. */
  readonly logCost: number;
}

/**
 * Log-probability of one rollout (action 0 or 1, number of candidates K >= 0) and its derivatives:
 * a - rho, and (K - c) / (1 + c). Throws `invalid-config` on a number of candidates that is none.
 */
export function rolloutScore(rollout: {
  readonly logit: number;
  readonly action: 0 | 1;
  readonly logCost: number;
  readonly candidates: number;
}): ToyScore {
  const { logit, action, logCost, candidates } = rollout;
  if (!Number.isInteger(candidates) || candidates < 0) {
    throw new HoneError('invalid-config', `A rollout cannot have ${candidates} candidates.`, {
      cure: 'The number of candidates is a whole number, at least 0.',
    });
  }
  const cost = Math.exp(logCost);
  const logStop = -Math.log1p(cost);
  const signed = action === 1 ? logit : -logit;
  return {
    logProbability: -Math.log1p(Math.exp(-signed)) + logStop + candidates * (logCost + logStop),
    logit: action === 1 ? sigmoid(-logit) : -sigmoid(logit),
    logCost: (candidates - cost) / (1 + cost),
  };
}
