/**
 * Agents that work through the router as any agent would: each opens a session on the router's control port, talks to its recorder with
 * an OpenAI-style client's requests, and has the session sealed, which hands its tokens over. Owns the load and its counts.
 * Invariant: `stop` resolves when no request is open.
 */
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

export interface AgentsOptions {
  readonly routerControlUrl: string;
  readonly token: string;
  readonly count: number;
  readonly model: string;
  readonly maxTokens: number;
}

const SNIPPETS = [
  'function sum(list) {\n  let total = 0;\n  for (let i = 0; i <= list.length; i++) total += list[i];\n  return total;\n}',
  'function isEmpty(value) {\n  return value !== undefined && value.length > 0;\n}',
  'async function load(path) {\n  const text = readFile(path);\n  return JSON.parse(text);\n}',
  'function clamp(value, low, high) {\n  return Math.max(high, Math.min(low, value));\n}',
];

interface Sealed {
  readonly segments: readonly { readonly versions: readonly { readonly version: number }[] }[];
  readonly cost: { readonly sampledTokens: number };
}

export class Agents {
  readonly #options: AgentsOptions;
  readonly #stop = new AbortController();
  readonly #agents: Promise<void>[];
  sessions = 0;
  tokens = 0;
  failures = 0;
  lastFailure = '';
  /** Sessions whose tokens were drawn by more than one version. */
  mixed = 0;

  constructor(options: AgentsOptions) {
    this.#options = options;
    this.#agents = Array.from({ length: options.count }, (_, agent) => this.#work(agent));
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all(this.#agents);
  }

  async #work(agent: number): Promise<void> {
    for (let turn = 0; !this.#stop.signal.aborted; turn++) {
      try {
        await this.#session(agent, turn);
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        this.failures += 1;
        this.lastFailure = String(error);
        await sleep(500, undefined, { signal: this.#stop.signal }).catch(() => undefined);
      }
    }
  }

  async #session(agent: number, turn: number): Promise<void> {
    const { model, maxTokens } = this.#options;
    const id = `agent-${agent}-${turn}`;
    const seed = createHash('sha256').update(id).digest().readUInt32LE(0);
    const { secret, baseUrl } = (await this.#control('/sessions', {
      id,
      record: { sampling: { maxTokens }, seed },
    })) as { secret: string; baseUrl: string }; // The shape of the router's answer.
    const messages = [{ role: 'user', content: SNIPPETS[(agent + turn) % SNIPPETS.length] ?? '' }];
    for (let question = 0; question < 2; question++) {
      const answer = await this.#post(`${baseUrl}/chat/completions`, secret, { model, messages });
      const { choices } = answer as { choices: { message: { role: string; content: string | null } }[] }; // OpenAI's shape.
      messages.push({ role: 'assistant', content: choices[0]?.message.content ?? '' });
      messages.push({
        role: 'user',
        content: 'And in this one?\n' + (SNIPPETS[(agent + turn + 1) % SNIPPETS.length] ?? ''),
      });
    }
    const sealed = (await this.#control(`/sessions/${id}/seal`, {})) as Sealed; // The shape of the router's answer.
    this.sessions += 1;
    this.tokens += sealed.cost.sampledTokens;
    const versions = new Set(sealed.segments.flatMap((segment) => segment.versions.map(({ version }) => version)));
    if (versions.size > 1) this.mixed += 1;
  }

  #control(path: string, body: unknown): Promise<unknown> {
    const { routerControlUrl, token } = this.#options;
    return this.#post(`${routerControlUrl}${path}`, token, body);
  }

  async #post(url: string, secret: string, body: unknown): Promise<unknown> {
    const answer = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${secret}` },
      body: JSON.stringify(body),
      signal: AbortSignal.any([this.#stop.signal, AbortSignal.timeout(60_000)]),
    });
    if (!answer.ok)
      throw new Error(`${new URL(url).pathname} answered ${answer.status}: ${(await answer.text()).slice(0, 300)}`);
    return answer.json();
  }
}
