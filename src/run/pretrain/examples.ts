/**
 * Training sequences for a base model: plain source, and sweep conversations with the right answers.
 * A conversation is the very text that the harness and the recorder produce, so nothing here formats by itself.
 * Look-ups are drawn at a fixed rate whatever the line is, so the base model can use evidence but does not know when to
 * ask for it: that is left to reinforcement learning.
 */
import {
  sweepLookText,
  sweepLookupAnswer,
  sweepOpening,
  sweepQuestion,
  sweepVerdictText,
} from '../../agent/check/sweep-format.ts';
import { lookUpOnLine } from '../../agent/check/sweep-lookup.ts';
import { namesOnLine } from '../../code/line-names.ts';
import type { PackageIndex } from '../../code/package-index.ts';
import { HoneError } from '../../domain/errors.ts';
import type { Random } from '../../domain/ids.ts';
import type { Task } from '../../domain/task.ts';
import type { ChatTemplate, TemplateMessage } from '../../model/chat-template.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import type { Recipe } from './recipe.ts';

export interface TrainingSequence {
  readonly tokens: Int32Array;
  /** Positions whose token is trained, ascending. */
  readonly positions: Int32Array;
  /** Weight of each position. */
  readonly weights: Float32Array;
}

/** The conversation that a perfect reviewer would have had, with look-ups where `looks` says so. */
export function perfectConversation(
  task: Task,
  index: PackageIndex,
  options: { listNames: boolean; looks: (line: number, names: readonly string[]) => number | undefined },
): TemplateMessage[] {
  const { environment } = task;
  const bugAt = new Map(task.gold.bugs.map((bug) => [bug.startLine, bug]));
  const messages: TemplateMessage[] = [];
  for (const [position, change] of environment.changes.entries()) {
    const names = options.listNames ? namesOnLine(change) : [];
    const question = sweepQuestion(change, names);
    messages.push({ role: 'user', content: position === 0 ? sweepOpening(environment, question) : question });
    const look = options.looks(change.line, names);
    const name = look === undefined ? undefined : names[look];
    if (look !== undefined && name !== undefined) {
      messages.push({ role: 'assistant', content: sweepLookText(look) });
      messages.push({
        role: 'user',
        content: sweepLookupAnswer(lookUpOnLine(index, { file: environment.file, change, name }).text),
      });
    }
    messages.push({ role: 'assistant', content: sweepVerdictText(bugAt.get(change.line)?.category) });
  }
  return messages;
}

/**
 * Tokens of a conversation and which of them the assistant writes (its end-of-turn token included). The template must
 * render message by message; that is checked against the whole rendering for every conversation it is opened with.
 */
export class ConversationEncoder {
  readonly #tokenizer: Tokenizer;
  readonly #template: ChatTemplate;
  readonly #cache = new Map<string, Int32Array>();
  readonly #assistantStart: Int32Array;
  #checked = 0;

  constructor(tokenizer: Tokenizer, template: ChatTemplate) {
    this.#tokenizer = tokenizer;
    this.#template = template;
    const user: TemplateMessage = { role: 'user', content: 'x' };
    const bare = template.render([user], { addGenerationPrompt: false });
    const prompted = template.render([user], { addGenerationPrompt: true });
    if (!prompted.startsWith(bare)) throw this.#notIncremental();
    this.#assistantStart = tokenizer.encode(prompted.slice(bare.length));
  }

  encode(messages: readonly TemplateMessage[], languageWeight = 0): TrainingSequence {
    if (this.#checked < 8) {
      this.#checked++;
      const whole = this.#template.render(messages, { addGenerationPrompt: false });
      if (
        whole !== messages.map((message) => this.#template.render([message], { addGenerationPrompt: false })).join('')
      )
        throw this.#notIncremental();
    }
    const ids: number[] = [];
    const positions: number[] = [];
    const weights: number[] = [];
    for (const message of messages) {
      const tokens = this.#encodeMessage(message);
      const answerFrom = message.role === 'assistant' ? this.#assistantStart.length : tokens.length;
      for (let at = 0; at < tokens.length; at++) {
        const weight = at >= answerFrom ? 1 : languageWeight;
        if (weight > 0 && ids.length > 0) {
          positions.push(ids.length);
          weights.push(weight);
        }
        ids.push(tokens[at] ?? 0);
      }
    }
    return { tokens: Int32Array.from(ids), positions: Int32Array.from(positions), weights: Float32Array.from(weights) };
  }

  #encodeMessage(message: TemplateMessage): Int32Array {
    const text = this.#template.render([message], { addGenerationPrompt: false });
    if (message.role !== 'assistant') return this.#tokenizer.encode(text);
    // Answers are few: each is encoded once.
    let tokens = this.#cache.get(text);
    if (tokens === undefined) this.#cache.set(text, (tokens = this.#tokenizer.encode(text)));
    return tokens;
  }

  #notIncremental(): HoneError {
    return new HoneError(
      'invalid-tokenizer',
      'The chat template does not render message by message, so answers cannot be told from the rest.',
      { cure: 'Pre-train with a template that appends each message to what came before.' },
    );
  }
}

/** Look-ups at the recipe's rates, drawn from `random`. */
export function drawnLooks(
  recipe: Recipe['check'],
  random: Random,
): (line: number, names: readonly string[]) => number | undefined {
  return (_line, names) => {
    const look = random.next() < recipe.lookRate;
    const first = random.next() < recipe.firstNameRate;
    const other = random.next();
    if (!look || names.length === 0) return undefined;
    return first || names.length === 1 ? 0 : 1 + Math.floor(other * (names.length - 1));
  };
}
