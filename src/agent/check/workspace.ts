/**
 * A read-only view of a package folder with the change laid over it: what the tools of a reviewing model see.
 * Invariants: paths are relative to the package root and cannot leave it, not even by a link; binary and huge files are
 * refused; every output is bounded in lines and bytes and says when it was cut.
 */
import { readFile, readdir, realpath, stat } from 'node:fs/promises';
import { join, sep } from 'node:path';
import { createContext, runInContext } from 'node:vm';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import type { Task } from '../../domain/task.ts';

/** What a tool answers: text for the model, or a sentence that says what was wrong with the request. */
export type ToolAnswer =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'refused'; readonly reason: string };

const MAX_FILE_BYTES = 1024 * 1024;
const MAX_OUTPUT_LINES = 200;
const MAX_OUTPUT_BYTES = 16 * 1024;
const MAX_LINE_CHARACTERS = 300;
const MAX_MATCHES = 50;
const MAX_SEARCHED_FILES = 2_000;
const MAX_SEARCHED_BYTES = 24 * 1024 * 1024;
/** A pattern that backtracks without end is cut off, for each file. */
const PATTERN_TIMEOUT_MS = 200;
const SKIPPED_FOLDERS = new Set(['node_modules', '.git']);

const refused = (reason: string): ToolAnswer => ({ kind: 'refused', reason });

/** Line numbers are part of the text, so that a model never has to count. */
function numberedLine(line: number, raw: string): string {
  const text = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
  const cut =
    text.length > MAX_LINE_CHARACTERS
      ? `${text.slice(0, MAX_LINE_CHARACTERS)} [line cut at ${MAX_LINE_CHARACTERS} of ${text.length} characters]`
      : text;
  return `${String(line).padStart(5)}  ${cut}`;
}

/** Takes lines until the limit of lines or bytes; returns how many were taken. */
function takeLines(lines: readonly string[], maxLines: number): { text: string; taken: number } {
  let sizeBytes = 0;
  let taken = 0;
  while (taken < lines.length && taken < maxLines) {
    sizeBytes += Buffer.byteLength(lines[taken] ?? '') + 1;
    if (taken > 0 && sizeBytes > MAX_OUTPUT_BYTES) break;
    taken++;
  }
  return { text: lines.slice(0, taken).join('\n'), taken };
}

/** The file after the change: the function's lines over the installed ones, which must agree wherever nothing was changed. */
export function overlayChange(original: string, environment: Task['environment']): string {
  const { startLine, lines, changes } = environment;
  const result = original.split('\n');
  const changed = new Set(changes.map((change) => change.line));
  for (const [offset, after] of lines.entries()) {
    const line = startLine + offset;
    const installed = result[line - 1];
    const carriageReturn = installed?.endsWith('\r') === true && !after.endsWith('\r') ? '\r' : '';
    if (installed === undefined || (!changed.has(line) && installed !== after + carriageReturn))
      throw mismatch(environment, line);
    result[line - 1] = after + carriageReturn;
  }
  return result.join('\n');
}

function mismatch(environment: Task['environment'], line: number): HoneError {
  return new HoneError(
    'invalid-task',
    `Line ${line} of ${environment.file} in the installed ${environment.package} is not the task's.`,
    {
      cure: `Install ${environment.package}@${environment.version}, the version that the task was made from.`,
    },
  );
}

export class Workspace {
  readonly #root: string;
  readonly #file: string;
  readonly #changed: string;

  private constructor(root: string, file: string, changed: string) {
    this.#root = root;
    this.#file = file;
    this.#changed = changed;
  }

  static async open(directory: string, environment: Task['environment']): Promise<Workspace> {
    const root = await realpath(directory);
    const original = await readFile(join(root, environment.file), 'utf8');
    return new Workspace(root, environment.file, overlayChange(original, environment));
  }

  /** Lines of one file, numbered as after the change. */
  async read(path: string, range: { startLine?: number; endLine?: number } = {}): Promise<ToolAnswer> {
    const file = await this.#load(path);
    if (file.kind === 'refused') return file;
    const lines = file.text.split('\n');
    const start = Math.max(1, range.startLine ?? 1);
    const end = Math.min(lines.length, range.endLine ?? lines.length);
    if (start > lines.length) return refused(`${path} has ${lines.length} lines; line ${start} is past its end.`);
    if (end < start) return refused(`endLine ${end} is before startLine ${start}.`);
    const numbered = lines.slice(start - 1, end).map((text, index) => numberedLine(start + index, text));
    const { text, taken } = takeLines(numbered, MAX_OUTPUT_LINES);
    const left = numbered.length - taken;
    return {
      kind: 'text',
      text: left === 0 ? text : `${text}\n[cut: ${left} more lines; read on with startLine ${start + taken}]`,
    };
  }

  /** Lines that contain the text, or match the regular expression, as path:line. */
  async search(pattern: string, options: { isRegExp?: boolean; path?: string } = {}): Promise<ToolAnswer> {
    if (pattern.length === 0 || pattern.length > 500) return refused('The pattern must have 1 to 500 characters.');
    let matchLines: (lines: string[]) => number[];
    try {
      matchLines =
        options.isRegExp === true
          ? regExpMatcher(pattern)
          : (lines) => lines.flatMap((line, index) => (line.includes(pattern) ? [index] : []));
    } catch (error) {
      return refused(`The pattern is not a valid regular expression: ${reasonOf(error)}.`);
    }
    const { paths, isPartial } = await this.#list(options.path ?? '');
    if (paths === undefined) return refused(`There is no file or folder ${options.path ?? ''} in the package.`);
    const found: string[] = [];
    let sizeBytes = 0;
    let isCut = isPartial;
    for (const path of paths) {
      if (found.length >= MAX_MATCHES || sizeBytes > MAX_SEARCHED_BYTES) {
        isCut = true;
        break;
      }
      const file = await this.#load(path);
      if (file.kind === 'refused') continue;
      sizeBytes += file.text.length;
      const lines = file.text.split('\n');
      let hits: number[];
      try {
        hits = matchLines(lines);
      } catch {
        return refused(
          `The regular expression took longer than ${PATTERN_TIMEOUT_MS} ms on ${path}; use a simpler one.`,
        );
      }
      for (const index of hits)
        found.push(`${path}:${numberedLine(index + 1, (lines[index] ?? '').trim()).trimStart()}`);
    }
    if (found.length === 0)
      return { kind: 'text', text: isCut ? 'No match in the part of the package that was searched.' : 'No match.' };
    const { text, taken } = takeLines(found, MAX_MATCHES);
    return {
      kind: 'text',
      text:
        isCut || taken < found.length
          ? `${text}\n[cut: there may be more matches; narrow the pattern or the path]`
          : text,
    };
  }

  async #load(path: string): Promise<ToolAnswer> {
    if (path === this.#file) return { kind: 'text', text: this.#changed };
    const parts = path.split('/');
    if (
      path.startsWith('/') ||
      /[\\\0]/u.test(path) ||
      parts.includes('..') ||
      parts.includes('.') ||
      parts.includes('') ||
      path.length === 0
    )
      return refused(`"${path}" is not a path relative to the package root with forward slashes.`);
    try {
      const absolute = await realpath(join(this.#root, path));
      if (!absolute.startsWith(this.#root + sep)) return refused(`${path} leads out of the package.`);
      const { size, isFile } = await stat(absolute).then((stats) => ({ size: stats.size, isFile: stats.isFile() }));
      if (!isFile) return refused(`${path} is not a file.`);
      if (size > MAX_FILE_BYTES) return refused(`${path} has ${size} bytes, over the limit of ${MAX_FILE_BYTES}.`);
      const bytes = await readFile(absolute);
      if (bytes.subarray(0, 8192).includes(0)) return refused(`${path} is a binary file.`);
      return { kind: 'text', text: bytes.toString('utf8') };
    } catch {
      return refused(`There is no file ${path} in the package.`);
    }
  }

  /** Files under a path, sorted; undefined when there is nothing. Links are not followed. */
  async #list(path: string): Promise<{ paths: string[] | undefined; isPartial: boolean }> {
    const paths: string[] = [];
    const queue: string[] = [path.replace(/\/$/u, '')];
    if (queue[0] !== '' && (await this.#load(queue[0] ?? '')).kind === 'text')
      return { paths: [queue[0] ?? ''], isPartial: false };
    // `./a` names the same file as `a`, and would be read without the change: one spelling a file.
    const parts = path.split('/');
    if (path.startsWith('/') || parts.includes('..') || parts.includes('.'))
      return { paths: undefined, isPartial: false };
    for (let folder = queue.shift(); folder !== undefined; folder = queue.shift()) {
      let entries;
      try {
        entries = await readdir(join(this.#root, folder), { withFileTypes: true });
      } catch {
        if (folder === path) return { paths: undefined, isPartial: false };
        continue;
      }
      entries.sort((left, right) => (left.name < right.name ? -1 : 1));
      for (const entry of entries) {
        const child = folder === '' ? entry.name : `${folder}/${entry.name}`;
        if (entry.isDirectory() && !SKIPPED_FOLDERS.has(entry.name)) queue.push(child);
        else if (entry.isFile()) paths.push(child);
        if (paths.length >= MAX_SEARCHED_FILES) return { paths, isPartial: true };
      }
    }
    return { paths, isPartial: false };
  }
}

/** Runs the model's pattern where a time limit can stop it. Throws on an invalid pattern, and when the limit is hit. */
function regExpMatcher(pattern: string): (lines: string[]) => number[] {
  new RegExp(pattern, 'u').test('');
  const context = createContext({ pattern, text: '' });
  return (lines) => {
    context['text'] = lines.join('\n');
    const hits: unknown = runInContext(
      'JSON.stringify(text.split("\\n").flatMap((line, index) => (new RegExp(pattern, "u").test(line) ? [index] : [])))',
      context,
      { timeout: PATTERN_TIMEOUT_MS },
    );
    // The script above returns a JSON list of numbers.
    return JSON.parse(String(hits)) as number[];
  };
}
