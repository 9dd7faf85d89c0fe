/**
 * Options of the project's own scripts (`npm run … -- --option value`): help, and one sentence for a value that cannot be meant.
 * Invariant: what comes back is checked and of the type that its option says; whatever else stands on the line ends the script with code 2.
 */
import { Command, CommanderError, InvalidArgumentError, Option } from 'commander';

export interface ScriptOption<Value> {
  /** As help shows it, such as `<number>`; empty for a switch. */
  readonly placeholder: string;
  readonly describe: string;
  /** Undefined where leaving it out is a choice of its own. */
  readonly fallback: Value;
  /** Throws with what was expected. */
  readonly parse: (text: string) => Value;
}

export type ScriptOptions<Values> = { readonly [Name in keyof Values]: ScriptOption<Values[Name]> };

/** Above 0. */
export function aNumber(fallback: number, describe: string): ScriptOption<number> {
  return numeric(fallback, describe, { expected: 'a number above 0', isRight: (value) => value > 0 });
}

/** From 1 on, up to `most`. */
export function aCount(fallback: number, describe: string, most = Number.MAX_SAFE_INTEGER): ScriptOption<number> {
  return numeric(fallback, describe, {
    expected: most === Number.MAX_SAFE_INTEGER ? 'a whole number of 1 or more' : `a whole number from 1 to ${most}`,
    isRight: (value) => Number.isSafeInteger(value) && value > 0 && value <= most,
  });
}

export function aText(fallback: string, describe: string, placeholder = '<text>'): ScriptOption<string> {
  return { placeholder, describe, fallback, parse: (text) => text };
}

export function aSwitch(describe: string): ScriptOption<boolean> {
  return { placeholder: '', describe, fallback: false, parse: () => true };
}

export function oneOf<const Name extends string>(
  names: readonly Name[],
  fallback: NoInfer<Name>,
  describe: string,
): ScriptOption<Name> {
  return {
    placeholder: `<${names.join('|')}>`,
    describe,
    fallback,
    parse: (text) => names.find((name) => name === text) ?? refuse(`expected ${names.join(' or ')}`),
  };
}

/** Some of the names, separated by commas; all of them when it is left out. */
export function someOf<const Name extends string>(
  names: readonly Name[],
  describe: string,
): ScriptOption<readonly Name[]> {
  return {
    placeholder: `<${names.join(',')}>`,
    describe,
    fallback: names,
    parse: (text) =>
      text
        .split(',')
        .map(
          (part) =>
            names.find((name) => name === part.trim()) ?? refuse(`expected some of ${names.join(', ')}, with commas`),
        ),
  };
}

export function optional<Value>(option: ScriptOption<Value>): ScriptOption<Value | undefined> {
  return { ...option, fallback: undefined };
}

export interface ScriptFace<Values> {
  /** As in `npm run <name>`. */
  readonly name: string;
  readonly summary: string;
  readonly options: ScriptOptions<Values>;
  /** Commands, when the script has some: exactly one must be given. */
  readonly commands?: readonly string[];
}

/** Ends the process after help (code 0) and for what cannot be meant (code 2). */
export function readScriptOptions<Values>(
  face: ScriptFace<Values>,
  line = process.argv.slice(2),
): Values & { readonly command: string } {
  try {
    return parseScriptOptions(face, line);
  } catch (error) {
    if (error instanceof CommanderError) process.exit(error.exitCode === 0 ? 0 : 2);
    throw error;
  }
}

/** Throws a CommanderError after it wrote help or the sentence. */
export function parseScriptOptions<Values>(
  { name, summary, options, commands }: ScriptFace<Values>,
  line: readonly string[],
  write: { writeOut?: (text: string) => void; writeErr?: (text: string) => void } = {},
): Values & { readonly command: string } {
  const program = new Command(`npm run ${name} --`).description(summary).exitOverride().configureOutput(write);
  program.showHelpAfterError(`(npm run ${name} -- --help lists the options)`);
  const entries = Object.entries<ScriptOption<unknown>>(options);
  for (const [key, { placeholder, describe, fallback, parse }] of entries) {
    const option = new Option(`--${dashed(key)} ${placeholder}`.trim(), describe);
    if (placeholder !== '') option.argParser(parse);
    if (fallback !== undefined && placeholder !== '') option.default(fallback, JSON.stringify(fallback));
    program.addOption(option);
  }
  if (commands !== undefined) program.argument(`<${commands.join('|')}>`, 'what to do');
  program.parse([...line], { from: 'user' });
  const [command = ''] = program.args;
  if (commands !== undefined && !commands.includes(command))
    program.error(`error: ${JSON.stringify(command)} is none of ${commands.join(', ')}`);
  const given = program.opts<Record<string, unknown>>();
  const values = Object.fromEntries(entries.map(([key, { fallback }]) => [key, given[key] ?? fallback]));
  // Each value came from its own option's parser or fallback.
  return { ...(values as Values), command };
}

function numeric(
  fallback: number,
  describe: string,
  { expected, isRight }: { expected: string; isRight: (value: number) => boolean },
): ScriptOption<number> {
  const parse = (text: string): number => {
    const value = Number(text);
    return text.trim() !== '' && Number.isFinite(value) && isRight(value) ? value : refuse(`expected ${expected}`);
  };
  return { placeholder: '<number>', describe, fallback, parse };
}

function refuse(expected: string): never {
  throw new InvalidArgumentError(`${expected}.`);
}

function dashed(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}
