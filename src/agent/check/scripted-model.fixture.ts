/**
 * A fake model for the harness tests: a real HTTP server that answers chat completions from a script, and the change
 * that the tests review.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

import type { PackageIndex } from '../../code/package-index.ts';
import type { Effort } from '../../domain/effort.ts';
import type { HarnessContext } from '../../domain/harness.ts';
import type { Task } from '../../domain/task.ts';

export interface SentRequest {
  readonly messages: readonly { role: string; content: string | null; tool_call_id?: string }[];
  readonly tools?: readonly { function: { name: string } }[];
  readonly max_tokens: number;
  readonly model: string;
}

/** Text, calls, an HTTP failure, or no answer at all. */
export type Scripted =
  | string
  | { readonly calls: readonly { name: string; arguments: unknown }[] }
  | { readonly status: number; readonly code?: string }
  | { readonly hangs: true };

export interface ScriptedModel {
  readonly context: HarnessContext;
  readonly requests: { readonly body: SentRequest; readonly raw: string; readonly retry: string | undefined }[];
  close(): Promise<void>;
}

/** Answers the n-th request with the n-th entry; every reply costs `tokensPerReply` completion tokens. */
export async function startScriptedModel(
  script: readonly Scripted[],
  options: {
    budget?: Partial<HarnessContext['budget']>;
    effort?: Effort;
    signal?: AbortSignal;
    tokensPerReply?: number;
  } = {},
): Promise<ScriptedModel> {
  const requests: ScriptedModel['requests'][number][] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const raw = Buffer.concat(chunks).toString('utf8');
      const retry = request.headers['x-stainless-retry-count'];
      const turn = requests.length;
      // The harness under test sends this shape; the assertions would fail on any other.
      requests.push({
        body: JSON.parse(raw) as SentRequest,
        raw,
        retry: typeof retry === 'string' ? retry : undefined,
      });
      const entry = script[turn] ?? { status: 418 };
      if (typeof entry === 'object' && 'hangs' in entry) return;
      if (typeof entry === 'object' && 'status' in entry) {
        response.writeHead(entry.status, { 'content-type': 'application/json', 'retry-after': '0' });
        response.end(JSON.stringify({ error: { message: 'scripted failure', code: entry.code ?? 'scripted' } }));
        return;
      }
      const calls = typeof entry === 'string' ? [] : entry.calls;
      const message = {
        role: 'assistant',
        content: typeof entry === 'string' ? entry : null,
        ...(calls.length === 0
          ? {}
          : {
              tool_calls: calls.map((call, index) => ({
                id: `call_${turn}_${index}`,
                type: 'function',
                function: {
                  name: call.name,
                  arguments: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments),
                },
              })),
            }),
      };
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(
        JSON.stringify({
          choices: [{ index: 0, message, finish_reason: 'stop' }],
          usage: { completion_tokens: options.tokensPerReply ?? 2 },
        }),
      );
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  // A listening TCP server's address is never a string or null.
  const { port } = server.address() as AddressInfo;
  return {
    requests,
    context: {
      baseUrl: `http://127.0.0.1:${port}/v1`,
      apiKey: 'key',
      model: 'scripted',
      budget: { maxTurns: 20, maxTokens: 1000, maxSeconds: 30, ...options.budget },
      signal: options.signal ?? new AbortController().signal,
      ...(options.effort === undefined ? {} : { effort: options.effort }),
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** A function of `lib/copy.js` from line 3 on; two of its lines are changed. */
export const ENVIRONMENT: Task['environment'] = {
  package: 'files',
  version: '1.0.0',
  file: 'lib/copy.js',
  functionName: 'copyAll',
  startLine: 3,
  lines: [
    'async function copyAll(list, target) {',
    '  const limit = 10;',
    '  for (let i = 0; i <= list.length; i++) {',
    '    copy(target, list[i]);',
    '  }',
    '}',
  ],
  changes: [
    {
      line: 5,
      before: '  for (let i = 0; i < list.length; i++) {',
      after: '  for (let i = 0; i <= list.length; i++) {',
    },
    { line: 6, before: '    copy(list[i], target);', after: '    copy(target, list[i]);' },
  ],
};

/** The file as it is installed: before the change. */
export const INSTALLED_FILE = `'use strict';

async function copyAll(list, target) {
  const limit = 10;
  for (let i = 0; i < list.length; i++) {
    copy(list[i], target);
  }
}

function copy(source, target) {
  return write(target, source);
}
`;

/** An index that knows one function. */
export const INDEX: Pick<PackageIndex, 'lookUp'> = {
  lookUp: (name) =>
    name === 'copy'
      ? {
          name: 'copy',
          file: 'lib/copy.js',
          line: 10,
          kind: 'function',
          isAsync: false,
          parameters: ['source', 'target'],
        }
      : undefined,
};
