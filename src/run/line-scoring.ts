/**
 * How sure a policy is of each changed line, without sampling: the probability of a bug at the moment of the verdict, read
 * from the model in a conversation where every earlier verdict was `ok`. Once without look-ups, once with the first name
 * of every line looked up; and mixed as the policy itself would choose. Thresholds and rankings are made from these.
 */
import { perfectConversation } from './pretrain/examples.ts';
import type { LoadedModel } from './load-model.ts';
import { LOOK_WORD, OK_WORD } from '../agent/check/sweep-format.ts';
import { HoneError } from '../domain/errors.ts';
import { BUG_CATEGORIES } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';
import type { Corpus } from '../tasks/corpus.ts';
import type { ScoreSequence } from '../train/embedded-trainer.ts';

/** One row a task, one number a changed line, each in [0, 1]. */
export interface LineProbabilities {
  readonly withoutLookups: readonly number[][];
  readonly withLookups: readonly number[][];
  /** Weighted by the policy's own probability of looking the line up. */
  readonly asPlayed: readonly number[][];
  /** Probability of asking for a look-up. */
  readonly looks: readonly number[][];
}

export type ScoreFunction = (sequences: readonly ScoreSequence[]) => Promise<Float32Array[]>;

const BATCH = 64;

export async function scoreLines(model: LoadedModel, tasks: readonly Task[], options: { score: ScoreFunction; corpus: Corpus; listNames: boolean }): Promise<LineProbabilities> {
  const { tokenizer } = model;
  const candidates = [OK_WORD, LOOK_WORD, ...BUG_CATEGORIES].map((word) => tokenizer.encode(word)[0] ?? 0);
  if (new Set(candidates).size !== candidates.length)
    throw new HoneError('invalid-tokenizer', 'Two answers of the sweep format begin with the same token, so lines cannot be scored.', { cure: 'Use a tokenizer in which every bug category is one token, or leave eval.controls off.' });
  const plain: number[][] = [];
  const looked: number[][] = [];
  const looks: number[][] = [];
  for (let from = 0; from < tasks.length; from += BATCH) {
    const slice = tasks.slice(from, from + BATCH);
    const sequences: ScoreSequence[] = [];
    for (const task of slice) {
      const index = await options.corpus.index(task.environment.package);
      const silent: Task = { ...task, gold: { bugs: [] } };
      for (const look of [false, true]) sequences.push(toSequence(model, perfectConversation(silent, index, { listNames: options.listNames, looks: () => (look ? 0 : undefined) }), candidates));
    }
    const scores = await options.score(sequences);
    for (const [position] of slice.entries()) {
      const without = rows(scores[2 * position], candidates.length);
      const withLooks = rows(scores[2 * position + 1], candidates.length);
      plain.push(without.map(bugProbability));
      looks.push(without.map((row) => Math.exp(row[1] ?? 0)));
      looked.push(verdictRows(withLooks, sequences[2 * position + 1], model).map(bugProbability));
    }
  }
  const asPlayed = plain.map((row, task) => row.map((value, line) => {
    const chance = looks[task]?.[line] ?? 0;
    return chance * (looked[task]?.[line] ?? value) + (1 - chance) * value;
  }));
  return { withoutLookups: plain, withLookups: looked, asPlayed, looks };
}

/** The first token of every assistant turn is where the choice falls. */
function toSequence(model: LoadedModel, messages: readonly { role: string; content: string }[], candidates: readonly number[]): ScoreSequence {
  const tokens: number[] = [];
  const positions: number[] = [];
  for (const [at, message] of messages.entries()) {
    if (message.role === 'assistant') {
      const prompt = model.template.render(messages.slice(0, at), { addGenerationPrompt: true });
      // The prompt's text always extends what is encoded so far; only the end is new.
      const text = model.template.render(messages.slice(0, at), { addGenerationPrompt: false });
      for (const id of model.tokenizer.encode(prompt.slice(text.length))) tokens.push(id);
      positions.push(tokens.length);
      const whole = model.template.render(messages.slice(0, at + 1), { addGenerationPrompt: false });
      for (const id of model.tokenizer.encode(whole.slice(prompt.length))) tokens.push(id);
    } else {
      const before = at === 0 ? '' : model.template.render(messages.slice(0, at), { addGenerationPrompt: false });
      const whole = model.template.render(messages.slice(0, at + 1), { addGenerationPrompt: false });
      for (const id of model.tokenizer.encode(whole.slice(before.length))) tokens.push(id);
    }
  }
  return { tokens: Int32Array.from(tokens), positions: Int32Array.from(positions), candidates: Int32Array.from(candidates) };
}

/** Leaves out the turns that ask for the look-up. */
function verdictRows(all: readonly Float32Array[], sequence: ScoreSequence | undefined, model: LoadedModel): Float32Array[] {
  const look = model.tokenizer.encode(LOOK_WORD)[0];
  return all.filter((_, index) => sequence?.tokens[sequence.positions[index] ?? 0] !== look);
}

function rows(values: Float32Array | undefined, width: number): Float32Array[] {
  const list: Float32Array[] = [];
  for (let at = 0; values !== undefined && at < values.length; at += width) list.push(values.subarray(at, at + width));
  return list;
}

/** Probability of some category against `ok`, given that a verdict is spoken. */
function bugProbability(row: Float32Array): number {
  let bug = 0;
  for (let index = 2; index < row.length; index++) bug += Math.exp(row[index] ?? Number.NEGATIVE_INFINITY);
  const fine = Math.exp(row[0] ?? Number.NEGATIVE_INFINITY);
  return bug + fine === 0 ? 0 : bug / (bug + fine);
}
