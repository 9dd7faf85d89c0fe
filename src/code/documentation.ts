/**
 * What the comment that touches a declaration says: its first line, and the defaults that it states for the name or for
 * its parameters. Comments are found by syntax tree; only their prose is read by pattern.
 */
import type { SyntaxNode } from './syntax-tree.ts';

const MAX_DOC_CHARACTERS = 80;

export function commentBefore(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  let at: SyntaxNode | undefined = node;
  // A declaration's comment stands before its statement: `export`, `const`, an assignment.
  while (
    at?.parent !== undefined &&
    at.parent.children.find((child) => child.kind !== 'comment') === at &&
    at.parent.parent !== undefined
  )
    at = at.parent;
  if (
    at?.parent?.kind === 'export_statement' ||
    at?.parent?.kind === 'lexical_declaration' ||
    at?.parent?.kind === 'variable_declaration'
  )
    at = at.parent;
  if (at?.parent?.kind === 'export_statement') at = at.parent;
  const siblings = at?.parent?.children ?? [];
  const position = at === undefined ? -1 : siblings.indexOf(at);
  const previous = siblings[position - 1];
  const candidate = previous?.kind === ',' || previous?.kind === ';' ? siblings[position - 2] : previous;
  return candidate?.kind === 'comment' ? textOf(candidate) : undefined;
}

export function documented(comment: string | undefined): { doc?: string } {
  if (comment === undefined) return {};
  const line = comment
    .split('\n')
    .map((text) => text.replace(/^[\s/*]+|[\s*/]+$/gu, ''))
    .find((text) => text !== '' && !text.startsWith('@') && !/eslint|istanbul|ts-/u.test(text));
  return line === undefined ? {} : { doc: line.slice(0, MAX_DOC_CHARACTERS) };
}

const STATED_DEFAULT =
  /(?:@default(?:[Vv]alue)?\s+|\b[Dd]efaults? (?:to|is|value is)\s*:?\s*|\b[Dd]efault(?: value)?\s*[:=]\s*)`?(-?\d[\w.]*|true|false|null|'[^'\n]{1,20}'|"[^"\n]{1,20}")/u;

export function statedDefault(comment: string | undefined): string | undefined {
  return comment === undefined ? undefined : STATED_DEFAULT.exec(comment)?.[1]?.replace(/\.$/u, '');
}

/** `@param {number} [options.timeout=5000]`, or a default stated in the parameter's text. */
export function parameterDefaults(comment: string | undefined): { name: string; value: string }[] {
  if (comment === undefined || !comment.startsWith('/**')) return [];
  const found: { name: string; value: string }[] = [];
  for (const match of comment.matchAll(
    /@(?:param|property|prop)\s+(?:\{[^}\n]*\}\s*)?\[?(?:[\w$]+\.)*([\w$]+)(?:\s*=\s*([^\]\n]{1,24}?)\s*\])?([^@]*)/gu,
  )) {
    const [, name, bracketed, rest] = match;
    const value = bracketed ?? statedDefault(rest);
    if (name !== undefined && value !== undefined && /^(-?\d[\w.]*|true|false|null|'[^']*'|"[^"]*")$/u.test(value))
      found.push({ name, value });
  }
  return found;
}
