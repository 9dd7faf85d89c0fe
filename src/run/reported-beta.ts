/** The beta of the F-scores that a run reports: that of its reward, and 0.5 where success is all or nothing. */
import type { RewardSpec } from '../reward/spec.ts';

const DEFAULT_BETA = 0.5;

export function reportedBeta({ base }: Pick<RewardSpec, 'base'>): number {
  return base.kind === 'detection' ? base.beta : DEFAULT_BETA;
}
