/** `hone config`: every option of a run config, generated from its schema. */
import { z } from 'zod';

import { configOptions } from '../run/config-options.ts';
import { runConfigSchema } from '../run/config.ts';

export function printConfig(options: Record<string, unknown>): void {
  const text =
    options['json'] === true
      ? JSON.stringify(z.toJSONSchema(runConfigSchema, { io: 'input' }), null, 2)
      : configTable().join('\n');
  process.stdout.write(`${text}\n`);
}

function configTable(): string[] {
  return configOptions(runConfigSchema).map(({ path, type, default: fallback, description }) => {
    const given = fallback === undefined ? '' : `, default ${fallback}`;
    return `${path.padEnd(34)} ${type}${given}${description === '' ? '' : `: ${description}`}`;
  });
}
