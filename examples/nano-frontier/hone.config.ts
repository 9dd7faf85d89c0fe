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
        // A short run: the price has tens of steps to find its place, not the thousand that the default rate is made for.
        controller: { rate: 0.2, decay: null, proportional: 0.2, slewLimit: 0.1 },
      },
    ],
  },
  algorithm: { steps: 48, groupSize: 8, groupsPerStep: 12, learningRate: 5e-4, entropyCoefficient: 0.012 },
  eval: { tasks: 600, controls: false },
});
