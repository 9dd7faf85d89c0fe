/**
 * What a look-up says, in one short line that a small model can judge by comparing neighbouring words: arguments beside
 * the parameters that they are bound to where the two differ, the declared value beside a different one on the line.
 */
import type { Declaration } from './declarations.ts';

const MAX_ARGUMENTS = 5;

/** `line` is the changed line on which the name stands. */
export function lookupText(name: string, declaration: Declaration | undefined, line: string): string {
  if (declaration === undefined)
    return isBuiltIn(name) ? `built-in ${name}` : `${name} is not declared in this package`;
  switch (declaration.kind) {
    case 'function':
    case 'method':
    case 'class': {
      const head =
        declaration.kind === 'class' ? `class ${name}` : `${declaration.isAsync ? 'async ' : ''}function ${name}`;
      return `${head}(${bindArguments(declaration.parameters, argumentsOnLine(line, name))})`;
    }
    case 'constant':
    case 'property': {
      const value = declaration.value;
      if (value === undefined) return describeMember(name, declaration);
      const head = declaration.kind === 'constant' ? `const ${name} = ${value}` : `${name} default ${value}`;
      const here = literalBeside(line, name);
      // Like the arguments below: only what differs is worth a reader's time.
      return here === undefined || here === value ? head : `${head} here ${here}`;
    }
    default:
      return declaration.kind satisfies never;
  }
}

function describeMember(name: string, declaration: Declaration): string {
  if (declaration.kind === 'constant') return `const ${name}`;
  return declaration.container === undefined ? `property ${name}` : `property ${name} of ${declaration.container}`;
}

/** As an editor's inlay hints: an argument that bears its parameter's name says nothing new and is left out. */
function bindArguments(parameters: readonly string[], given: readonly string[] | undefined): string {
  const shown = parameters.slice(0, MAX_ARGUMENTS).map((parameter, index) => {
    const argument = given?.[index];
    return argument === undefined || argument.toLowerCase() === parameter.toLowerCase()
      ? parameter
      : `${parameter} = ${argument}`;
  });
  if (parameters.length > MAX_ARGUMENTS) shown.push('...');
  return shown.join(', ');
}

/** The last identifier of each argument of the call of `name` on the line; undefined when it is not called there. */
export function argumentsOnLine(line: string, name: string): string[] | undefined {
  const open = openParenthesisAfter(line, name);
  if (open === undefined) return undefined;
  const found: string[] = [];
  let depth = 0;
  let start = open + 1;
  let quote = '';
  for (let at = open; at < line.length; at++) {
    const unit = line[at] ?? '';
    if (quote !== '') {
      if (unit === '\\') at++;
      else if (unit === quote) quote = '';
      continue;
    }
    if (unit === "'" || unit === '"' || unit === '`') quote = unit;
    else if (unit === '(' || unit === '[' || unit === '{') depth++;
    else if (unit === ')' || unit === ']' || unit === '}') {
      depth--;
      if (depth === 0) {
        pushArgument(found, line.slice(start, at));
        return found;
      }
    } else if (unit === ',' && depth === 1) {
      pushArgument(found, line.slice(start, at));
      start = at + 1;
    }
  }
  pushArgument(found, line.slice(start));
  return found;
}

function pushArgument(found: string[], text: string): void {
  const argument = text.trim();
  if (argument !== '') found.push(lastSegment(argument));
}

/** `b` of `this.a.b`, the literal itself, `...` for what has no name. */
export function lastSegment(argument: string): string {
  if (/^(-?\d[\w.]*|'[^']{0,16}'|"[^"]{0,16}")$/u.test(argument)) return argument;
  const path = /^(?:\.\.\.|await |!)?(?:[\w$]+(?:\?)?\.)*#?([\w$]+)!?$/u.exec(argument);
  return path?.[1] ?? '...';
}

function openParenthesisAfter(line: string, name: string): number | undefined {
  for (let at = line.indexOf(name); at !== -1; at = line.indexOf(name, at + 1)) {
    if (/[\w$]/u.test(line[at - 1] ?? '') || /[\w$]/u.test(line[at + name.length] ?? '')) continue;
    let next = at + name.length;
    if (line.startsWith('?.(', next)) next += 2;
    if (line[next] === '(') return next;
  }
  return undefined;
}

const LITERAL = String.raw`(-?\d[\w.]*|true|false|null|'[^']{0,20}'|"[^"]{0,20}")`;

/** The literal that the line gives the name: before a comment that names it, or after it and one of `= : ?? ||`. */
function literalBeside(line: string, name: string): string | undefined {
  const escaped = name.replaceAll('$', String.raw`\$`);
  const commented = new RegExp(String.raw`${LITERAL}\s*/\*\s*${escaped}\s*\*/`, 'u').exec(line);
  if (commented !== null) return commented[1];
  return new RegExp(String.raw`(?<![\w$])${escaped}\s*(?:[=:]|\?\?|\|\||===|!==)=?\s*${LITERAL}`, 'u').exec(line)?.[1];
}

const BUILT_IN_NAMES = collectBuiltInNames();

export function isBuiltIn(name: string): boolean {
  return BUILT_IN_NAMES.has(name);
}

function collectBuiltInNames(): ReadonlySet<string> {
  const names = new Set<string>([
    'require',
    'module',
    'exports',
    'window',
    'document',
    '__dirname',
    '__filename',
    'push',
    'then',
  ]);
  const standard: readonly object[] = [
    Object,
    Function,
    Array,
    String,
    Number,
    Boolean,
    Symbol,
    BigInt,
    Math,
    JSON,
    Reflect,
    Date,
    RegExp,
    Promise,
    Map,
    Set,
    WeakMap,
    WeakSet,
    Error,
    ArrayBuffer,
    Uint8Array,
    DataView,
    Intl,
    Proxy,
    URL,
    URLSearchParams,
    AbortController,
    AbortSignal,
    Buffer,
    TextEncoder,
    TextDecoder,
    EventTarget,
    process,
    console,
  ];
  for (const name of Object.getOwnPropertyNames(globalThis)) names.add(name);
  for (const object of standard) {
    for (const name of Object.getOwnPropertyNames(object)) names.add(name);
    const prototype: unknown = 'prototype' in object ? object.prototype : undefined;
    if (typeof prototype === 'object' && prototype !== null)
      for (const name of Object.getOwnPropertyNames(prototype)) names.add(name);
  }
  return names;
}
