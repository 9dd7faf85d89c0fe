/**
 * Which names on a changed line are worth looking up, nearest to the edit first, and what stands before their dot.
 * Works on the two texts alone: it asks no index, so the list says nothing about which names resolve.
 */

interface Token {
  readonly text: string;
  readonly start: number;
  readonly isName: boolean;
}

const TOKEN =
  /\/\/.*$|\/\*|\*\/|[A-Za-z_$][\w$]*|\d[\w.]*|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\?\.|=>|[=!<>]=+|&&|\|\||\?\?|\S/gu;
const KEYWORDS = new Set(
  'abstract any as async await boolean break case catch class const continue debugger declare default delete do else enum export extends false finally for from function get if implements import in infer instanceof interface is keyof let never new null number object of private protected public readonly require return satisfies set static string super switch symbol this throw true try type typeof undefined unknown var void while with yield arguments exports module constructor prototype NaN Infinity'.split(
    ' ',
  ),
);
const MAX_NAMES = 3;

/** Names worth looking up on the line after the change: callees, properties and constants, at most three. */
export function namesOnLine(change: { readonly before: string; readonly after: string }): string[] {
  const before = tokenize(change.before);
  const after = tokenize(change.after);
  let start = 0;
  while (start < before.length && start < after.length && before[start]?.text === after[start]?.text) start++;
  let tail = 0;
  while (
    tail < before.length - start &&
    tail < after.length - start &&
    before.at(-1 - tail)?.text === after.at(-1 - tail)?.text
  )
    tail++;
  const end = after.length - tail;
  const removed = before.slice(start, before.length - tail);
  const found: string[] = [];
  const add = (index: number | undefined): void => {
    const token = index === undefined ? undefined : after[index];
    if (token?.isName === true && !KEYWORDS.has(token.text) && !found.includes(token.text)) found.push(token.text);
  };
  const touched = after.slice(start, end);
  const onlyReordered = touched.length > 1 && sameWords(touched, removed);
  // Reordered arguments are judged by the function that they are given to.
  if (onlyReordered) add(calleeAround(after, start));
  for (let index = start; index < end; index++) if (isWorthLookingUp(after, index)) add(index);
  if (touched.every((token) => !token.isName || KEYWORDS.has(token.text))) {
    const onlyValues = touched.length > 0 && touched.every((token) => /^[\d'"-]|^(true|false|null)$/u.test(token.text));
    if (onlyValues) add(nameOfValue(after, start, end));
    // A keyword that came or went before a call is judged by what is called.
    else add(calleeAfter(after, end));
  }
  add(calleeAround(after, start));
  const rest = after.map((_, index) => index).filter((index) => isWorthLookingUp(after, index));
  rest.sort((a, b) => distance(a, start, end) - distance(b, start, end) || a - b);
  for (const index of rest) add(index);
  return found.slice(0, MAX_NAMES);
}

/** `this` in `this.open(x)`, `client` in `client.open(x)`, nothing in `open(x)`; the first place where the name stands. */
export function receiverOnLine(line: string, name: string): string | undefined {
  const tokens = tokenize(line);
  const at = tokens.findIndex((token) => token.isName && token.text === name);
  const dot = tokens[at - 1]?.text;
  if (at < 1 || (dot !== '.' && dot !== '?.')) return undefined;
  const before = tokens[at - 2];
  if (before === undefined) return '?';
  return before.isName ? before.text : '?';
}

function tokenize(line: string): Token[] {
  const tokens: Token[] = [];
  for (const match of line.matchAll(TOKEN)) {
    const [text] = match;
    if (text.startsWith('//')) continue;
    tokens.push({ text, start: match.index, isName: /^[A-Za-z_$]/u.test(text) });
  }
  return tokens;
}

function sameWords(a: readonly Token[], b: readonly Token[]): boolean {
  if (a.length !== b.length) return false;
  const texts = (tokens: readonly Token[]): string =>
    tokens
      .map((token) => token.text)
      .toSorted()
      .join(' ');
  return texts(a) === texts(b);
}

function isWorthLookingUp(tokens: readonly Token[], index: number): boolean {
  const token = tokens[index];
  if (token === undefined || !token.isName || KEYWORDS.has(token.text)) return false;
  const previous = tokens[index - 1]?.text;
  const next = tokens[index + 1]?.text;
  if (previous === '.' || previous === '?.') return true;
  if (next === '(' || next === ':') return true;
  if (previous === '/*') return true;
  return /^[A-Z][A-Z\d_]+$/u.test(token.text) || (next === '=' && tokens[index + 2] !== undefined);
}

/** The callee whose parentheses hold the token at `index`. */
function calleeAround(tokens: readonly Token[], index: number): number | undefined {
  let depth = 0;
  for (let at = index - 1; at > 0; at--) {
    const text = tokens[at]?.text;
    if (text === ')') depth++;
    if (text === '(' && depth-- === 0) {
      const callee = tokens[at - 1]?.text === '?.' ? at - 2 : at - 1;
      const candidate = tokens[callee];
      if (candidate?.isName === true && !KEYWORDS.has(candidate.text)) return callee;
      depth = 0;
    }
  }
  return undefined;
}

function calleeAfter(tokens: readonly Token[], index: number): number | undefined {
  for (let at = index; at < tokens.length - 1; at++) {
    const token = tokens[at];
    if (token?.isName === true && !KEYWORDS.has(token.text) && tokens[at + 1]?.text === '(') return at;
    if (token?.text === ';' || token?.text === '{') return undefined;
  }
  return undefined;
}

/** The name that a literal is the value of: `NAME` in a comment right after it, or left of `=`, `:`, `??`, `||`, `===`. */
function nameOfValue(tokens: readonly Token[], start: number, end: number): number | undefined {
  if (tokens[end]?.text === '/*' && tokens[end + 1]?.isName === true) return end + 1;
  let at = start - 1;
  while (at >= 0 && /^(=|:|\?\?|\|\||===?|!==?|[<>]=?|-|\+|\?|,|\()$/u.test(tokens[at]?.text ?? '')) at--;
  return tokens[at]?.isName === true && !KEYWORDS.has(tokens[at]?.text ?? '') ? at : undefined;
}

function distance(index: number, start: number, end: number): number {
  if (index < start) return start - index;
  return index >= end ? index - end + 1 : 0;
}
