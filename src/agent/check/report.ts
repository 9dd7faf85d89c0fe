/**
 * The report strategy, for large models: a numbered diff, tools to read around it, and one final list of findings.
 * Invariants: an unreadable report gets one repair turn, then counts as empty and invalid; a tool's mistake is told to
 * the model and costs nothing but the turn.
 */
import { receiverOnLine } from '../../code/line-names.ts';
import type { PackageIndex } from '../../code/package-index.ts';
import type { Effort } from '../../domain/effort.ts';
import type { Finding, LookupRecord, Submission } from '../../domain/finding.ts';
import { BUG_CATEGORIES } from '../../domain/task.ts';
import type { Task } from '../../domain/task.ts';
import type { ChatClient, Message, ToolCallMessage } from './chat-client.ts';
import { effortLine } from './effort-line.ts';
import { numberedDiff } from './numbered-diff.ts';
import { readReport, readReportMessage, reportParameters } from './report-reply.ts';
import type { ReportReading } from './report-reply.ts';
import type { ToolAnswer, Workspace } from './workspace.ts';

export interface ReportOptions {
  /** Undefined = look-ups are off: only `submit` is offered. */
  readonly around: { readonly workspace: Workspace; readonly index: Pick<PackageIndex, 'lookUp'> } | undefined;
  /** Declarations that `definition` may show in the whole episode. */
  readonly maxLookups: number;
  /** Told to the model in the opening message. */
  readonly effort: Effort | undefined;
}

const INSTRUCTIONS = `You review one change to an npm package and report the bugs that this change introduces.
Lines of the new file carry their numbers; a line marked - was replaced by the line marked + after it.
Report only defects that the change itself introduces, each once, on the exact lines, with a concrete failing case in its description.
A change may hold no bug: then submit an empty list. Paths are relative to the package root.
Categories: ${BUG_CATEGORIES.join(', ')}.
When you are done call submit once, or write the same object as the last JSON block of a message: {"findings": [{"file", "startLine", "endLine", "severity": "low" | "medium" | "high", "category", "title", "description", "fix"?}]}; fix is a unified diff against the file after the change.`;

const tool = (name: string, description: string, parameters: object): object => ({
  type: 'function',
  function: { name, description, parameters },
});
const SUBMIT = tool(
  'submit',
  'Ends the review with its findings; an empty list says that the change is right.',
  reportParameters(),
);
const AROUND = [
  tool('read', 'Lines of one file of the package after the change, numbered.', {
    type: 'object',
    properties: {
      path: { type: 'string' },
      startLine: { type: 'integer', minimum: 1 },
      endLine: { type: 'integer', minimum: 1 },
    },
    required: ['path'],
    additionalProperties: false,
  }),
  tool('search', 'Lines of the package that contain a text or match a regular expression.', {
    type: 'object',
    properties: {
      pattern: { type: 'string' },
      isRegExp: { type: 'boolean' },
      path: { type: 'string', description: 'file or folder to search in; the whole package without it' },
    },
    required: ['pattern'],
    additionalProperties: false,
  }),
  tool('definition', 'The declaration of a name that is used in the change.', {
    type: 'object',
    properties: {
      name: { type: 'string' },
      line: { type: 'integer', minimum: 1, description: 'line of the changed file where the name is used' },
    },
    required: ['name'],
    additionalProperties: false,
  }),
];
/** Lines of source shown from a declaration on. */
const DEFINITION_LINES = 12;

export async function runReport(
  environment: Task['environment'],
  client: ChatClient,
  options: ReportOptions,
): Promise<Submission> {
  const tools = options.around === undefined ? [SUBMIT] : [...AROUND, SUBMIT];
  const messages: Message[] = [
    { role: 'system', content: INSTRUCTIONS },
    {
      role: 'user',
      content: `${effortLine(options.effort)}Package ${environment.package}@${environment.version}, function ${environment.functionName} in ${environment.file}:\n\n${numberedDiff(environment)}`,
    },
  ];
  const lookups: LookupRecord[] = [];
  let isRepairLeft = true;
  const submission = (end: Submission['end'], findings: readonly Finding[] = []): Submission => ({
    valid: end === 'finished',
    findings,
    end,
    turns: client.turns,
    lookups,
  });

  for (;;) {
    const result = await client.complete(messages, tools);
    if (result.kind === 'end') return submission(result.reason);
    const { content, toolCalls } = result;
    messages.push(
      toolCalls.length === 0
        ? { role: 'assistant', content }
        : { role: 'assistant', content: content === '' ? null : content, tool_calls: toolCalls },
    );
    const submitted = toolCalls.find((call) => call.function.name === 'submit');
    let reading: ReportReading | undefined;
    if (submitted !== undefined) reading = readReport(submitted.function.arguments);
    else if (toolCalls.length === 0) reading = readReportMessage(content);
    if (reading?.kind === 'findings') return submission('finished', reading.findings);
    if (reading !== undefined) {
      if (!isRepairLeft) return submission('malformed');
      isRepairLeft = false;
    }
    const warning = client.turnsLeft === 1 ? '\n[last turn: submit now]' : '';
    for (const call of toolCalls) {
      const text =
        call === submitted && reading?.kind === 'unreadable'
          ? `${reading.reason} Submit the corrected report.`
          : await answerCall(call, environment, options, lookups);
      messages.push({ role: 'tool', tool_call_id: call.id, content: text + warning });
    }
    if (toolCalls.length === 0 && reading?.kind === 'unreadable')
      messages.push({
        role: 'user',
        content: `${reading.reason} Call submit, or reply with the report as one JSON block and nothing else.${warning}`,
      });
  }
}

async function answerCall(
  call: ToolCallMessage,
  environment: Task['environment'],
  { around, maxLookups }: ReportOptions,
  lookups: LookupRecord[],
): Promise<string> {
  const { name } = call.function;
  if (name === 'submit') return 'Only the first submit of a turn is read.';
  if (around === undefined) return `There is no tool ${name}; the only tool is submit.`;
  let input: unknown;
  try {
    input = JSON.parse(call.function.arguments);
  } catch {
    return `The arguments of ${name} are not valid JSON.`;
  }
  const text = (key: string): string | undefined => readField(input, key, 'string');
  const whole = (key: string): number | undefined => readField(input, key, 'number');
  const line = (key: string): number | undefined => {
    const value = whole(key);
    return value === undefined ? undefined : Math.max(1, Math.trunc(value));
  };
  const unwrap = (answer: ToolAnswer): string => (answer.kind === 'text' ? answer.text : answer.reason);
  switch (name) {
    case 'read': {
      const path = text('path');
      if (path === undefined) return 'read needs a path.';
      const startLine = line('startLine');
      const endLine = line('endLine');
      return unwrap(
        await around.workspace.read(path, {
          ...(startLine === undefined ? {} : { startLine }),
          ...(endLine === undefined ? {} : { endLine }),
        }),
      );
    }
    case 'search': {
      const pattern = text('pattern');
      if (pattern === undefined) return 'search needs a pattern.';
      const path = text('path');
      return unwrap(
        await around.workspace.search(pattern, {
          isRegExp: readField(input, 'isRegExp', 'boolean') ?? false,
          ...(path === undefined ? {} : { path }),
        }),
      );
    }
    case 'definition': {
      const wanted = text('name');
      if (wanted === undefined) return 'definition needs a name.';
      if (lookups.length >= maxLookups) return 'No look-up is left; go on with what you have seen.';
      const from = line('line') ?? environment.changes[0]?.line ?? environment.startLine;
      const changedText = environment.lines[from - environment.startLine] ?? '';
      const receiver = receiverOnLine(changedText, wanted);
      const declaration = around.index.lookUp(wanted, {
        file: environment.file,
        line: from,
        ...(receiver === undefined ? {} : { receiver }),
      });
      lookups.push({ line: from, name: wanted, found: declaration !== undefined });
      if (declaration === undefined) return `${wanted} is not declared in this package.`;
      const place = `${declaration.kind} ${declaration.container === undefined ? '' : `${declaration.container}.`}${declaration.name} in ${declaration.file}`;
      return `${place}\n${unwrap(await around.workspace.read(declaration.file, { startLine: declaration.line, endLine: declaration.line + DEFINITION_LINES - 1 }))}`;
    }
    default:
      return `There is no tool ${name}; use read, search, definition or submit.`;
  }
}

interface FieldTypes {
  string: string;
  number: number;
  boolean: boolean;
}

function readField<T extends keyof FieldTypes>(input: unknown, key: string, type: T): FieldTypes[T] | undefined {
  const value: unknown =
    typeof input === 'object' && input !== null ? Object.getOwnPropertyDescriptor(input, key)?.value : undefined;
  // typeof has just been compared with the name of the type.
  return typeof value === type ? (value as FieldTypes[T]) : undefined;
}
