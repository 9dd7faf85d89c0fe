/**
 * The functions of a source file, as whole lines, and a signature that two clones share.
 * Invariants: a function's text is exactly the file's lines from the first to the last that the function touches; of
 * functions that start on one line only the first is taken.
 */
import { createHash } from 'node:crypto';

import type { SourceFile } from './source-files.ts';
import {
  childOfKind,
  closest,
  containsError,
  FUNCTION_KINDS,
  type LineMap,
  visit,
  type SyntaxNode,
} from './syntax-tree.ts';

export interface SourceFunction {
  readonly name: string;
  readonly node: SyntaxNode;
  /** 1-based. */
  readonly startLine: number;
  readonly endLine: number;
  /** Offset of the first line in the file. */
  readonly offset: number;
  /** Whole lines, without the last line break. */
  readonly text: string;
}

const MIN_LINES = 5;
const MAX_LINES = 80;
/** Up to here the outermost function is taken and those inside it are not offered again. */
const SMALL_LINES = 30;
const MAX_LINE_CHARACTERS = 140;
/** Marks of compilers and bundlers: such code was not written by a person. */
const COMPILED =
  /__awaiter|__generator|__spread|__rest\b|__assign|_interop|_this\b|_createClass|regeneratorRuntime|asyncToGenerator|\(0, |\[native code|void 0\b|@ts-/u;

export function findFunctions(file: SourceFile, root: SyntaxNode, lines: LineMap): SourceFunction[] {
  const found: SourceFunction[] = [];
  let lastStart = 0;
  visit(root, (node) => {
    if (!FUNCTION_KINDS.has(node.kind)) return true;
    const startLine = lines.lineAt(node.start);
    const endLine = lines.lineAt(node.end);
    const count = endLine - startLine + 1;
    if (count < MIN_LINES) return false;
    if (count > MAX_LINES) return true;
    const offset = lines.startOf(startLine);
    const text = file.text.slice(offset, lines.endOf(endLine));
    if (startLine !== lastStart && isUsable(text) && !containsError(node)) {
      found.push({ name: functionName(node, file.text), node, startLine, endLine, offset, text });
      lastStart = startLine;
    }
    return count > SMALL_LINES;
  });
  return found;
}

function isUsable(text: string): boolean {
  if (!/^[\t\n\u0020-\u007e]*$/u.test(text) || COMPILED.test(text)) return false;
  return text.split('\n').every((line) => line.length <= MAX_LINE_CHARACTERS);
}

function functionName(node: SyntaxNode, text: string): string {
  const textOf = (part: SyntaxNode): string => text.slice(part.start, part.end);
  const own = childOfKind(node, 'identifier', 'property_identifier', 'private_property_identifier');
  if (own !== undefined && node.kind !== 'arrow_function') return textOf(own);
  const holder = node.parent;
  const target = holder?.children[0];
  if (holder === undefined || target === undefined) return 'anonymous';
  if (
    holder.kind === 'variable_declarator' ||
    holder.kind === 'pair' ||
    holder.kind === 'field_definition' ||
    holder.kind === 'public_field_definition'
  ) {
    const name = childOfKind(holder, 'identifier', 'property_identifier', 'private_property_identifier');
    return name === undefined ? 'anonymous' : textOf(name);
  }
  if (holder.kind === 'assignment_expression' && target !== node) return textOf(target.children.at(-1) ?? target);
  return 'anonymous';
}

/** Equal for two functions that differ only in the names of identifiers, in comments and in layout. */
export function cloneSignature(node: SyntaxNode, text: string): string {
  const hash = createHash('sha1');
  const numbers = new Map<string, number>();
  visit(node, (part) => {
    if (part.kind === 'comment') return false;
    if (part.children.length > 0) return true;
    const word = text.slice(part.start, part.end);
    if (/identifier/u.test(part.kind)) {
      const number = numbers.get(word) ?? numbers.size;
      numbers.set(word, number);
      hash.update(`${number} `);
    } else hash.update(`${word} `);
    return true;
  });
  return hash.digest('base64').slice(0, 16);
}

/** The function that a node runs in, if it is declared async. */
export function isInsideAsync(node: SyntaxNode): boolean {
  const owner = closest(node, FUNCTION_KINDS);
  return owner !== undefined && childOfKind(owner, 'async') !== undefined;
}
