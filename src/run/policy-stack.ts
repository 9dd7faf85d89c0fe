/**
 * Everything between a task and the weights that answer it: who samples, recorder, harness. One stack a process; training and
 * evaluation share it, so both speak to the policy through the same sockets.
 */
import type { LoadedModel } from './load-model.ts';
import type { RunConfig } from './config.ts';
import type { SamplingSource } from './sampling-source.ts';
import { effortBudget, effortsOf, tellsEffort } from './efforts.ts';
import { createCheckHarness } from '../agent/check/harness.ts';
import { sweepOpening, sweepQuestion } from '../agent/check/sweep-format.ts';
import { findInstalledPackage } from '../code/installed-packages.ts';
import { namesOnLine } from '../code/line-names.ts';
import type { Effort } from '../domain/effort.ts';
import { HoneError } from '../domain/errors.ts';
import type { Harness } from '../domain/harness.ts';
import type { Sampling } from '../domain/policy.ts';
import type { Task } from '../domain/task.ts';
import type { EpisodeSetting } from '../rollout/episode.ts';
import { Recorder } from '../serve/recorder.ts';
import type { Corpus } from '../tasks/corpus.ts';

export interface PolicyStack {
  readonly source: SamplingSource;
  readonly recorder: Recorder;
  /** The setting of an episode at one of the config's levels of effort. */
  setting(options: { greedy: boolean; lookups: 'on' | 'off'; effort: Effort }): EpisodeSetting;
  close(): Promise<void>;
}

export interface PolicyStackOptions {
  readonly model: LoadedModel;
  /** Closed together with the stack. */
  readonly source: SamplingSource;
  readonly config: Pick<RunConfig, 'harness' | 'efforts' | 'sampling'>;
  /** Milliseconds of a clock that only goes forward. */
  readonly now: () => number;
  /** Corpora whose packages can be looked up in. */
  readonly corpora: readonly Corpus[];
}

export async function openPolicyStack({
  model,
  source,
  config,
  corpora,
  now,
}: PolicyStackOptions): Promise<PolicyStack> {
  const recorder = await Recorder.start({
    policy: source.policy,
    tokenizer: model.tokenizer,
    template: model.template,
    model: 'policy',
  });
  const corpusOf = new Map(corpora.flatMap((corpus) => corpus.packages.map(({ name }) => [name, corpus] as const)));
  const harnesses = new Map<string, Harness>();
  const harness = (lookups: 'on' | 'off'): Harness => {
    let made = harnesses.get(lookups);
    if (made === undefined) {
      made = createCheckHarness({
        strategy: config.harness.strategy,
        lookups,
        instructions: config.harness.instructions === 'full' ? 'on' : 'off',
        openPackage: async (name) => {
          const corpus = corpusOf.get(name);
          if (corpus === undefined)
            throw new HoneError('corpus-missing', `The package ${name} is in no open corpus.`, {
              cure: 'Draw tasks and look-ups from the same splits.',
            });
          return { directory: findInstalledPackage(name).directory, index: await corpus.index(name) };
        },
      });
      harnesses.set(lookups, made);
    }
    return made;
  };
  const sampling = (greedy: boolean): Sampling => ({
    temperature: config.sampling.temperature,
    topK: config.sampling.topK,
    topP: config.sampling.topP,
    minP: config.sampling.minP,
    maxTokens: config.sampling.maxTokensPerTurn,
    stopIds: [model.tokenizer.endOfSequence.id, ...model.config.eosTokenIds],
    greedy,
  });
  return {
    source,
    recorder,
    setting: ({ greedy, lookups, effort }) => ({
      recorder,
      minVersion: () => source.minVersion,
      harness: harness(lookups),
      budget: effortBudget(config, effort),
      sampling: sampling(greedy),
      model: 'policy',
      effort,
      tellsEffort: tellsEffort(config),
      now,
    }),
    close: async () => {
      await recorder.close();
      await source.close();
    },
  };
}

/** Throws unless the model can be asked about every task, context and tools included: found at start, not in the middle of a run. */
export function checkModelFits(
  model: LoadedModel,
  tasks: readonly Task[],
  config: Pick<RunConfig, 'harness' | 'efforts'>,
): void {
  if (config.harness.strategy === 'report' && !model.template.supportsTools)
    throw new HoneError(
      'invalid-model',
      'harness.strategy is report, and the chat template of the model does not render tools.',
      { cure: 'Use harness.strategy sweep, or a model whose chat template knows tools.' },
    );
  // The longest name stands for all.
  const effort = tellsEffort(config)
    ? effortsOf(config).reduce((longest, name) => (name.length > longest.length ? name : longest))
    : undefined;
  for (const task of tasks) {
    const { changes } = task.environment;
    const questions = changes.map((change) =>
      sweepQuestion(change, config.harness.lookups === 'on' ? namesOnLine(change) : []),
    );
    const messages = questions.map((question, index) => ({
      role: 'user',
      content: index === 0 ? sweepOpening(task.environment, question, effort) : question,
    }));
    const tokens = model.tokenizer.encode(model.template.render(messages, { addGenerationPrompt: true })).length;
    // Answers and look-ups: about as much again for each line at the worst.
    const needed = tokens + changes.length * 64;
    if (needed > model.config.contextLength)
      throw new HoneError(
        'context-too-small',
        `Task ${task.id} (${task.environment.functionName}) needs about ${needed} tokens, the model's context is ${model.config.contextLength}.`,
        { cure: 'Lower tasks.maxCharacters (for hone eval: --max-characters), or use a model with a longer context.' },
      );
  }
}
