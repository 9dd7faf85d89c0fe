/** Trains models/nano to find injected bugs in real npm packages: the main job of `npm start`. */
import { defineRun } from 'hone';

export default defineRun({
  name: 'nano-check',
  seed: 1,
  model: 'models/nano',
  reward: { terms: [{ kind: 'cost', weights: { lookups: 0.02 } }] },
  algorithm: { steps: 64, groupSize: 8, groupsPerStep: 16, learningRate: 5e-4, entropyCoefficient: 0.012 },
  // The last version is then a whole model, ready to be opened.
  weights: { anchorEvery: 16 },
});
