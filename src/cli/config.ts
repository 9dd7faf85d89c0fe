/** `hone config`: every option of a run config, generated from its schema. */
import { z } from 'zod';

import { runConfigSchema } from '../run/config.ts';

interface JsonSchema {
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly description?: string;
  readonly default?: unknown;
  readonly enum?: readonly unknown[];
  readonly type?: string;
}

export function printConfig(options: Record<string, unknown>): void {
  // z.toJSONSchema gives plain JSON of this shape.
  const schema = z.toJSONSchema(runConfigSchema, { io: 'input' }) as JsonSchema;
  if (options['json'] === true) process.stdout.write(`${JSON.stringify(schema, null, 2)}\n`);
  else process.stdout.write(`${configTable(schema).join('\n')}\n`);
}

export function configTable(schema: JsonSchema, prefix = ''): string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const path = `${prefix}${name}`;
    if (property.properties !== undefined) return configTable(property, `${path}.`);
    const kind = property.enum === undefined ? (property.type ?? 'value') : property.enum.join(' | ');
    const fallback = property.default === undefined ? '' : `, default ${JSON.stringify(property.default)}`;
    return [
      `${path.padEnd(34)} ${kind}${fallback}${property.description === undefined ? '' : `: ${property.description}`}`,
    ];
  });
}
