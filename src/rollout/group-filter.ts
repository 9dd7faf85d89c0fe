/**
 * Which finished groups can teach. Looks at the raw outcome, never at the shaped reward: a group whose members all did
 * equally well or badly has no signal, however their costs differ. Members whose infrastructure failed do not count.
 */
import type { Rollout } from '../domain/rollout.ts';

export type GroupVerdict = 'keep' | 'zero-variance' | 'infra-failed';

export function filterGroup(rollouts: readonly Rollout[]): GroupVerdict {
  const usable = rollouts.filter((rollout) => rollout.outcome !== undefined && rollout.status !== 'infra-failed' && rollout.status !== 'aborted');
  if (usable.length < 2) return 'infra-failed';
  const first = usable[0]?.outcome;
  const varies = usable.some(({ outcome }) => outcome?.precision !== first?.precision || outcome?.recall !== first?.recall || outcome?.cheated !== first?.cheated);
  return varies ? 'keep' : 'zero-variance';
}
