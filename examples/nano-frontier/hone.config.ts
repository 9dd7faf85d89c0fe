/**
 * Trains models/nano to find injected bugs and to ask for fewer declarations at once: alpha says how the improvement is
 * divided. 1 = all of it becomes success at the look-ups of the starting policy, 0 = all of it becomes saving at its success.
 */
import { defineRun } from 'hone';

const ALPHA = 0.5;

export default defineRun({
  name: 'nano-frontier',
  seed: 1,
  model: 'models/nano',
  // Success, cost and the price to start from, measured on the starting policy: four rollouts a task show its slope.
  baseline: { tasks: 256, rolloutsPerTask: 4 },
  reward: {
    terms: [
      {
        kind: 'frontier',
        alpha: ALPHA,
        costs: [{ name: 'lookups', weights: { lookups: 1 } }],
        // A short run: the price has a hundred steps to find its place, not the thousand that the default rate is made for.
        // It may not move faster than the policy follows: at 0.15 a step it runs past its place, and no look-up is left.
        controller: { rate: 0.12, decay: null, proportional: 0.4, slewLimit: 0.05 },
      },
    ],
  },
  // Many tasks and few rollouts of each: the gap of a step is a mean over tasks.
  algorithm: { steps: 120, groupSize: 4, groupsPerStep: 24, learningRate: 8e-4, entropyCoefficient: 0.016 },
  eval: { tasks: 600, controls: false },
});
