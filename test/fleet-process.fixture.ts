/**
 * Services of a fleet as processes of their own, as a user starts them: a router and replicas over one store. They end with their
 * `await using`, and with the test process when that is cut off.
 */
import { startHone } from './hone-process.fixture.ts';
import type { HoneProcess } from './hone-process.fixture.ts';

export interface Served extends AsyncDisposable {
  readonly process: HoneProcess;
  readonly url: string;
  readonly controlUrl: string;
}

export interface ServeOptions {
  readonly cwd: string;
  readonly environment?: Readonly<Record<string, string>>;
}

/** Resolves once the service says where it listens. */
export async function serve(words: readonly string[], options: ServeOptions): Promise<Served> {
  const process = startHone(['serve', ...words, '--json'], options);
  let text = '';
  const line = await new Promise<string>((resolve, reject) => {
    process.child.stdout?.on('data', (piece: string) => {
      text += piece;
      if (text.includes('\n')) resolve(text.slice(0, text.indexOf('\n')));
    });
    void process.result.then(({ stderr }) => reject(new Error(`it ended early: ${stderr}`)));
  });
  // The line is what the command promises to print.
  const { url, controlUrl } = JSON.parse(line) as { url: string; controlUrl: string };
  return { process, url, controlUrl, [Symbol.asyncDispose]: () => process[Symbol.asyncDispose]() };
}

const optionWords = (options: Readonly<Record<string, string>>): string[] =>
  Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]);

/** A router at the ports of one that is gone. */
export const serveRouterAgain = ({ url, controlUrl }: Served, options: ServeOptions): Promise<Served> =>
  serve(['router', ...optionWords({ port: new URL(url).port, 'control-port': new URL(controlUrl).port })], options);

export interface ReplicaWords {
  readonly id: string;
  readonly router: Served;
  readonly store?: string;
  readonly model?: string;
  /** The run that it follows; undefined = none. */
  readonly run?: string | undefined;
}

export const serveReplica = (
  { id, router, store = 'store', model = 'model', run }: ReplicaWords,
  options: ServeOptions,
): Promise<Served> =>
  serve(
    [
      'replica',
      ...optionWords({ model, data: id, id, store, router: router.controlUrl, 'poll-seconds': '0.2' }),
      ...optionWords({ threads: '1', slots: '24', build: 'plain', ...(run === undefined ? {} : { run }) }),
      '--verify-served',
    ],
    options,
  );
