/**
 * How sure a policy is of each changed line, without sampling: the probability of a bug at the moment of the verdict, read
 * from the model in a conversation where every earlier verdict was `ok`. Once without look-ups, once with the first name
 * of every line looked up; and as the policy itself would have played. Thresholds and rankings are made from these.
 */
import { ConversationEncoder, perfectConversation } from './pretrain/examples.ts';
import type { TrainingSequence } from './pretrain/examples.ts';
import type { LoadedModel } from './load-model.ts';
import { LOOK_WORD, OK_WORD } from '../agent/check/sweep-format.ts';
import { HoneError } from '../domain/errors.ts';
import { createRandom, deriveSeed } from '../domain/ids.ts';
import { BUG_CATEGORIES } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';
import type { Corpus } from '../tasks/corpus.ts';
import type { ScoreSequence } from '../train/embedded-trainer.ts';

/** One row a task, one number a changed line, each in [0, 1]. */
export interface LineProbabilities {
  readonly withoutLookups: readonly number[][];
  readonly withLookups: readonly number[][];
  /** One or the other, by a draw at the policy's own probability of looking the line up: what it would have known. */
  readonly asPlayed: readonly number[][];
  /** Probability of asking for a look-up. */
  readonly looks: readonly number[][];
}

export type ScoreFunction = (sequences: readonly ScoreSequence[]) => Promise<Float32Array[]>;

const BATCH = 64;

export async function scoreLines(
  model: LoadedModel,
  tasks: readonly Task[],
  options: { score: ScoreFunction; corpus: Corpus; listNames: boolean },
): Promise<LineProbabilities> {
  const words = answerTokens(model);
  const encoder = new ConversationEncoder(model.tokenizer, model.template);
  const plain: number[][] = [];
  const looked: number[][] = [];
  const looks: number[][] = [];
  for (let from = 0; from < tasks.length; from += BATCH) {
    const slice = tasks.slice(from, from + BATCH);
    const sequences: ScoreSequence[] = [];
    for (const task of slice) {
      const index = await options.corpus.index(task.environment.package);
      const silent: Task = { ...task, gold: { bugs: [] } };
      for (const look of [false, true])
        sequences.push(
          toSequence(
            encoder.encode(
              perfectConversation(silent, index, { listNames: options.listNames, looks: () => (look ? 0 : undefined) }),
            ),
            words,
          ),
        );
    }
    const scores = await options.score(sequences);
    for (const [position] of slice.entries()) {
      const [without, looking] = pairs(scores[2 * position]);
      plain.push(without.map((ok) => 1 - ok));
      looks.push(looking);
      const [withLooks] = pairs(scores[2 * position + 1]);
      const sequence = sequences[2 * position + 1];
      // The turns that ask for the look-up are no verdicts.
      looked.push(
        withLooks.flatMap((ok, index) =>
          sequence?.tokens[sequence.positions[2 * index] ?? 0] === words.look ? [] : [1 - ok],
        ),
      );
    }
  }
  // Each line's own draw, the same for every policy: what is compared is how often a policy looks, not its luck.
  const asPlayed = plain.map((row, at) =>
    row.map((value, line) => {
      const draw = createRandom(deriveSeed(0, 'look', tasks[at]?.id ?? '', line)).next();
      return draw < (looks[at]?.[line] ?? 0) ? (looked[at]?.[line] ?? value) : value;
    }),
  );
  return { withoutLookups: plain, withLookups: looked, asPlayed, looks };
}

interface AnswerTokens {
  readonly ok: number;
  readonly look: number;
  /** `ok` and every category, ascending. */
  readonly verdicts: readonly number[];
  /** The verdicts and `look`, ascending. */
  readonly answers: readonly number[];
}

/** The token that each answer begins with. */
export function answerTokens({ tokenizer }: LoadedModel): AnswerTokens {
  const first = (word: string): number => tokenizer.encode(word)[0] ?? 0;
  const ok = first(OK_WORD);
  const look = first(LOOK_WORD);
  const verdicts = [ok, ...BUG_CATEGORIES.map(first)].sort((a, b) => a - b);
  const answers = [...verdicts, look].sort((a, b) => a - b);
  if (new Set(answers).size !== answers.length)
    throw new HoneError(
      'invalid-tokenizer',
      'Two answers of the sweep format begin with the same token, so lines cannot be scored.',
      { cure: 'Use a tokenizer in which every bug category is one token, or set eval.controls to false.' },
    );
  return { ok, look, verdicts, answers };
}

/** Asks two things at the first token of every assistant turn: `ok` among the verdicts, `look` among all answers. */
function toSequence({ tokens, positions: answered }: TrainingSequence, words: AnswerTokens): ScoreSequence {
  const positions: number[] = [];
  // An answer's tokens stand side by side: where they begin is where the choice falls.
  for (const [index, position] of answered.entries())
    if (position !== (answered[index - 1] ?? -1) + 1) positions.push(position, position);
  const ids: number[] = [];
  const offsets = [0];
  for (let turn = 0; turn < positions.length / 2; turn++) {
    ids.push(...words.verdicts);
    offsets.push(ids.length);
    ids.push(...words.answers);
    offsets.push(ids.length);
  }
  return {
    tokens,
    positions: Int32Array.from(positions),
    targets: Int32Array.from(positions, (_, index) => (index % 2 === 0 ? words.ok : words.look)),
    kept: { ids: Int32Array.from(ids), offsets: Int32Array.from(offsets) },
  };
}

/** The probabilities of `ok` and of `look`, turn by turn. */
function pairs(logprobs: Float32Array | undefined): [number[], number[]] {
  const ok: number[] = [];
  const look: number[] = [];
  for (const [index, value] of (logprobs ?? new Float32Array(0)).entries())
    (index % 2 === 0 ? ok : look).push(Math.exp(value));
  return [ok, look];
}
