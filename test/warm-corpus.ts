/** Before the tests: the corpus is extracted once, so that no two workers and no child process do it side by side. */
import { openCorpus } from '../src/tasks/corpus.ts';

export async function setup(): Promise<void> {
  for (const split of ['heldout', 'rl', 'pretrain'] as const) await openCorpus({ split });
}
