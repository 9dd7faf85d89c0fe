/** The main job with look-ups taken away in training and evaluation: what the trained policy is compared with. */
import nanoCheck from '../../examples/nano-check/hone.config.ts';
import { defineRun } from '../../src/run/config.ts';

export default defineRun({
  ...nanoCheck,
  name: 'nano-check-no-lookups',
  harness: { ...nanoCheck.harness, lookups: 'off' },
  // There is nothing to price.
  reward: {},
  eval: { ...nanoCheck.eval, controls: false },
});
