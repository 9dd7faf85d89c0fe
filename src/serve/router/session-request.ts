/**
 * What opens a session at a router's control port, and what is told to whoever comes to the data port with one that is good for
 * something else. It owns the shape and the words. Invariant: all that is wrong with a request is told at once, each with its path.
 */
import { z } from 'zod';

import { HoneError } from '../../domain/errors.ts';
import { schemaProblem } from '../../domain/schema-problem.ts';
import { GENERATE_PATH } from '../wire/generate-wire.ts';
import { recordOptionsSchema } from './hosted-recorder.ts';
import type { SessionUse } from './session-secrets.ts';

const sessionSchema = z.strictObject({
  id: z.string().regex(/^[\w.:-]{1,256}$/u, 'must be 1 to 256 letters, digits, dots, colons, dashes or underscores'),
  ttlSeconds: z.number().positive().max(604_800).default(3_600),
  record: recordOptionsSchema.optional(),
});

export type SessionRequest = z.infer<typeof sessionSchema>;

const EXAMPLE = '{ "id": "mine", "record": { "seed": 1, "sampling": { "maxTokens": 32 } } }';
const HOW_TO_OPEN = `POST /sessions on the control port with, for example, ${EXAMPLE}`;

/** Throws `invalid-config` with every problem. */
export function readSessionRequest(body: unknown): SessionRequest {
  const parsed = sessionSchema.safeParse(body);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.flatMap((issue) => {
    const path = issue.path.join('.');
    if (issue.code === 'unrecognized_keys')
      return issue.keys.map((key) => `${path === '' ? key : `${path}.${key}`} is no field of it`);
    return [`${path === '' ? 'the body' : path} ${schemaProblem(issue, body)}`];
  });
  const count = problems.length === 1 ? 'a problem' : `${problems.length} problems`;
  throw new HoneError('invalid-config', `The session has ${count}: ${problems.join('; ')}.`, {
    cure: `Send, for example, ${EXAMPLE}; without record the session may only ask for tokens.`,
  });
}

export interface UnservedRequest {
  readonly path: string;
  /** Whose secret it came with. */
  readonly session: { readonly id: string; readonly use: SessionUse } | undefined;
  readonly hasRecorder: boolean;
}

/** What a path that the data port does not have should have been. */
export function unservedSentence({ path, session, hasRecorder }: UnservedRequest): string {
  const isOfSessions = /\/v1(?:\/|$)|\/chat\/completions$|^\/sessions\//u.test(path);
  if (!hasRecorder) {
    const only = `Only ${GENERATE_PATH} is served here`;
    return isOfSessions
      ? `${only}: this router records no sessions. Start it with --model <folder>, and open a session that is recorded with ${HOW_TO_OPEN}.`
      : `${only}.`;
  }
  if (session?.use === 'generate')
    return `The session ${session.id} was opened without record: its secret is good for POST ${GENERATE_PATH} and no chat. Open one that is recorded with ${HOW_TO_OPEN}.`;
  const served = `Only ${GENERATE_PATH} and, below the baseUrl of a session that is recorded, /chat/completions and /models are served here`;
  if (session !== undefined)
    return `${served}: for this session /sessions/${encodeURIComponent(session.id)}/v1/chat/completions.`;
  return isOfSessions ? `${served}. Open one with ${HOW_TO_OPEN}.` : `${served}.`;
}

/** Whether a path is one that a recorder answers for sessions of its own. */
export function isChatPath(path: string): boolean {
  return path.startsWith('/sessions/');
}
