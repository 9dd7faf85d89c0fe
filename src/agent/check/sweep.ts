/**
 * The sweep strategy, for small and fast models: the change once as a word diff in its function, then each changed line
 * again with a question. The model answers with a verdict or asks for a declaration. All texts come from
 * sweep-format.ts. Invariant: one repair turn an episode; a second unreadable reply voids the report.
 */
import { namesOnLine } from '../../code/line-names.ts';
import type { PackageIndex } from '../../code/package-index.ts';
import type { Effort } from '../../domain/effort.ts';
import type { Finding, LineVerdict, LookupRecord, Submission } from '../../domain/finding.ts';
import type { Task } from '../../domain/task.ts';
import type { ChatClient, Message } from './chat-client.ts';
import {
  NO_LOOKUP_LEFT,
  REPAIR_TEXT,
  SWEEP_INSTRUCTIONS,
  parseSweepReply,
  sweepLookupAnswer,
  sweepOpening,
  sweepQuestion,
  sweepVerdictText,
} from './sweep-format.ts';
import { lookUpOnLine } from './sweep-lookup.ts';
import { findingFromVerdict } from './verdict-finding.ts';

export interface SweepOptions {
  /** Undefined = look-ups are off, and no names are listed. */
  readonly index: Pick<PackageIndex, 'lookUp'> | undefined;
  readonly lookupsPerLine: number;
  readonly lookupsPerTask: number;
  /** For models that were not trained on the format. */
  readonly withInstructions: boolean;
  /** Told to the model in the opening message. */
  readonly effort: Effort | undefined;
}

export async function runSweep(
  environment: Task['environment'],
  client: ChatClient,
  options: SweepOptions,
): Promise<Submission> {
  const { file, changes } = environment;
  const messages: Message[] = options.withInstructions ? [{ role: 'system', content: SWEEP_INSTRUCTIONS }] : [];
  const findings: Finding[] = [];
  const verdicts: LineVerdict[] = [];
  const lookups: LookupRecord[] = [];
  let isRepairLeft = true;
  const submission = (end: Submission['end']): Submission => ({
    valid: end !== 'malformed',
    findings: end === 'malformed' ? [] : findings,
    end,
    turns: client.turns,
    lookups,
    verdicts,
  });

  for (const [position, change] of changes.entries()) {
    const names = options.index === undefined ? [] : namesOnLine(change);
    const question = sweepQuestion(change, names);
    messages.push({
      role: 'user',
      content: position === 0 ? sweepOpening(environment, question, options.effort) : question,
    });
    let lineLookups = 0;
    let wasRefused = false;
    for (;;) {
      const result = await client.complete(messages);
      if (result.kind === 'end') return submission(result.reason);
      messages.push({ role: 'assistant', content: result.content });
      const reply = parseSweepReply(result.content);
      if (reply.kind === 'verdict') {
        verdicts.push({ line: change.line, verdict: sweepVerdictText(reply.category) });
        if (reply.category !== undefined) findings.push(findingFromVerdict(file, change.line, reply.category));
        break;
      }
      const name = reply.kind === 'look' ? names[reply.index] : undefined;
      const isAllowed = lineLookups < options.lookupsPerLine && lookups.length < options.lookupsPerTask;
      if (name !== undefined && options.index !== undefined && isAllowed) {
        const { text, found } = lookUpOnLine(options.index, { file, change, name });
        lineLookups++;
        lookups.push({ line: change.line, name, found });
        messages.push({ role: 'user', content: sweepLookupAnswer(text) });
      } else if (name !== undefined && !wasRefused) {
        wasRefused = true;
        messages.push({ role: 'user', content: sweepLookupAnswer(NO_LOOKUP_LEFT) });
      } else if (isRepairLeft) {
        isRepairLeft = false;
        messages.push({ role: 'user', content: sweepLookupAnswer(REPAIR_TEXT) });
      } else {
        return submission('malformed');
      }
    }
  }
  return submission('finished');
}
