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
        // The frontier in look-ups is nearly straight, which rings: what damps the loop is strong, and both rates fall.
        controller: { rate: 0.15, decay: { steps: 60, power: 0.6 }, proportional: 0.8, slewLimit: 0.2 },
      },
    ],
  },
  // Many tasks and few rollouts of each: the gap of a step is a mean over tasks.
  algorithm: {
    steps: 120,
    groupSize: 4,
    groupsPerStep: 24,
    learningRate: 8e-4,
    learningRateDecay: { steps: 30, power: 0.8 },
    entropyCoefficient: 0.016,
  },
  eval: { tasks: 600, controls: false },
});
