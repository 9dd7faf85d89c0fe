/**
 * The Harness port: the agent that ships. It gets a task's environment and an OpenAI-compatible base URL, and never
 * learns whether it is being trained.
 */
import type { Submission } from './finding.ts';
import type { Task } from './task.ts';

export interface Budget {
  readonly maxTurns: number;
  /** Completion tokens that the model may write in the whole episode. */
  readonly maxTokens: number;
  readonly maxSeconds: number;
}

export interface HarnessContext {
  /** Ends in /v1; the harness appends /chat/completions. */
  readonly baseUrl: string;
  readonly apiKey: string;
  readonly model: string;
  readonly budget: Budget;
  readonly signal: AbortSignal;
}

export interface Harness {
  readonly name: string;
  run(environment: Task['environment'], context: HarnessContext): Promise<Submission>;
}
