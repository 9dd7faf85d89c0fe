/**
 * Every option of a run config as a list, read from the JSON Schema of the config: for the table of docs/config.md, for
 * `hone config`, and for the name that a mistyped key was meant to be. In a path `[]` is an element of a list, `<name>` a
 * name of the user's own, and `{detection}` the fields of the choice that is called so.
 */
import { z } from 'zod';

export interface ConfigOption {
  readonly path: string;
  readonly type: string;
  /** As JSON; absent where there is none. */
  readonly default?: string;
  readonly isRequired: boolean;
  readonly description: string;
}

/** The part of JSON Schema that our schemas use. */
interface SchemaNode {
  readonly type?: string;
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: SchemaNode | boolean;
  readonly items?: SchemaNode;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly SchemaNode[];
  readonly oneOf?: readonly SchemaNode[];
  readonly default?: unknown;
  readonly description?: string;
}

/** All options of the schema, in its order. */
export function configOptions(schema: z.ZodType): ConfigOption[] {
  return listFields(jsonSchema(schema), '');
}

/** The names that may stand at a path of a parsed config, such as `reward.terms.0`; empty where the path leads nowhere. */
export function knownKeys(schema: z.ZodType, path: readonly PropertyKey[]): string[] {
  let nodes: SchemaNode[] = [jsonSchema(schema)];
  for (const part of path) nodes = nodes.flatMap(alternatives).flatMap((node) => child(node, String(part)) ?? []);
  return [...new Set(nodes.flatMap(alternatives).flatMap(({ properties }) => Object.keys(properties ?? {})))];
}

function jsonSchema(schema: z.ZodType): SchemaNode {
  // As written by a person, before defaults. z.toJSONSchema's own type is wider; our schemas use the part above.
  return z.toJSONSchema(schema, { io: 'input' }) as SchemaNode;
}

function alternatives(node: SchemaNode): readonly SchemaNode[] {
  return node.oneOf ?? node.anyOf ?? [node];
}

function child({ properties, items, additionalProperties }: SchemaNode, part: string): SchemaNode | undefined {
  if (properties?.[part] !== undefined) return properties[part];
  if (items !== undefined && /^\d+$/u.test(part)) return items;
  return typeof additionalProperties === 'object' ? additionalProperties : undefined;
}

function listFields(node: SchemaNode, prefix: string): ConfigOption[] {
  return Object.entries(node.properties ?? {}).flatMap(([key, field]) => {
    const path = prefix === '' ? key : `${prefix}.${key}`;
    if (field.properties !== undefined) return listFields(field, path);
    const option: ConfigOption = {
      path,
      type: describeType(field),
      ...(field.default === undefined ? {} : { default: JSON.stringify(field.default) }),
      isRequired: node.required?.includes(key) === true,
      description: field.description ?? '',
    };
    return [option, ...listInside(field, path)];
  });
}

/** The fields of what a list, a record or a choice holds. */
function listInside(node: SchemaNode, path: string): ConfigOption[] {
  if (node.items !== undefined) return listInside(node.items, `${path}[]`);
  if (typeof node.additionalProperties === 'object') return listInside(node.additionalProperties, `${path}.<name>`);
  const choices = (node.oneOf ?? node.anyOf ?? []).filter(({ properties }) => properties !== undefined);
  if (choices.length < 2) return listFields(choices[0] ?? node, path);
  return choices.flatMap((choice) => {
    const [name, rest] = splitChoice(choice);
    return listFields(rest, `${path}{${name}}`);
  });
}

/** What tells a choice from the others, a fixed value or else its first field, and the fields to list. */
function splitChoice(choice: SchemaNode): [string, SchemaNode] {
  const entries = Object.entries(choice.properties ?? {});
  const tag = entries.find(([, { const: value }]) => value !== undefined);
  if (tag === undefined) return [entries[0]?.[0] ?? '', choice];
  const properties = Object.fromEntries(entries.filter((entry) => entry !== tag));
  return [String(tag[1].const), { ...choice, properties }];
}

function describeType(node: SchemaNode): string {
  if (node.const !== undefined) return JSON.stringify(node.const);
  if (node.enum !== undefined) return node.enum.map((value) => JSON.stringify(value)).join(' or ');
  const choices = node.anyOf ?? node.oneOf;
  const isTold = (choices ?? []).filter(({ properties }) => properties !== undefined).length > 1;
  if (choices !== undefined)
    return [
      ...new Set(
        choices.map((choice) =>
          choice.properties === undefined || !isTold ? describeType(choice) : `{${splitChoice(choice)[0]}}`,
        ),
      ),
    ].join(' or ');
  if (node.type === 'array') return `list of ${node.items === undefined ? 'values' : describeType(node.items)}`;
  return node.type ?? 'any value';
}
