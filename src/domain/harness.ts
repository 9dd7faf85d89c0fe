/**
 * The Harness port: the agent that ships. It gets a task's environment and an OpenAI-compatible base URL, and never
 * learns whether it is being trained.
 */
import type { Effort } from './effort.ts';
import type { Submission } from './finding.ts';
import type { Task } from './task.ts';

export interface Budget {
  readonly maxTurns: number;
  /** Completion tokens that the model may write in the whole episode. */
  readonly maxTokens: number;
  /** Declarations that may be shown in the whole episode; absent = the harness's own bound. */
  readonly maxLookups?: number;
  readonly maxSeconds: number;
}

export interface HarnessContext {
  /** Ends in /v1; the harness appends /chat/completions. */
  readonly baseUrl: string;
  readonly apiKey: string;
  readonly model: string;
  readonly budget: Budget;
  /** The level to be told to the model at the top of its opening message; absent = the model is told none. */
  readonly effort?: Effort;
  readonly signal: AbortSignal;
}

export interface Harness {
  readonly name: string;
  run(environment: Task['environment'], context: HarnessContext): Promise<Submission>;
}
