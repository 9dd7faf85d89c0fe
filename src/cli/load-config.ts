/** Reads a hone.config.ts (or .js, .json) and applies what the command line overrides. */
import { existsSync, readFileSync } from 'node:fs';
import { extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { integerOption } from './options.ts';
import { HoneError } from '../domain/errors.ts';
import { resolveConfig } from '../run/config.ts';
import type { RunConfig } from '../run/config.ts';

export async function loadConfig(path: string, options: Record<string, unknown>): Promise<RunConfig> {
  const written = await readConfig(path);
  if (typeof written !== 'object' || written === null || Array.isArray(written))
    throw new HoneError('invalid-config', `${path} does not export a config object.`, {
      cure: 'End it with: export default defineRun({ ... }).',
    });
  const config: Record<string, unknown> = { ...written };
  if (options['name'] !== undefined) config['name'] = options['name'];
  if (options['seed'] !== undefined)
    config['seed'] = integerOption('--seed', options['seed'], { min: 0, max: 0xffffffff });
  if (options['steps'] !== undefined) {
    const algorithm = config['algorithm'];
    config['algorithm'] = {
      ...(typeof algorithm === 'object' ? algorithm : {}),
      steps: integerOption('--steps', options['steps'], { min: 1 }),
    };
  }
  return resolveConfig(config, path);
}

async function readConfig(path: string): Promise<unknown> {
  if (!existsSync(path))
    throw new HoneError('invalid-config', `There is no config file ${path}.`, {
      cure: 'Name one that exists; examples/nano-check/hone.config.ts is a working one.',
    });
  try {
    if (extname(path) === '.json') return JSON.parse(readFileSync(path, 'utf8'));
    // A config module's default export is checked by the schema.
    return ((await import(pathToFileURL(resolve(path)).href)) as { default?: unknown }).default;
  } catch (cause) {
    throw new HoneError(
      'invalid-config',
      `${path} could not be read: ${cause instanceof Error ? cause.message.split('\n')[0] : String(cause)}.`,
      { cure: 'Name a config file that exists and loads; examples/nano-check/hone.config.ts is a working one.', cause },
    );
  }
}
