/**
 * Literal values in a tree: short enough to be shown in a look-up, on one line.
 */
import type { SyntaxNode } from './syntax-tree.ts';

const LITERAL_KINDS = new Set(['number', 'string', 'true', 'false']);
const MAX_VALUE_CHARACTERS = 24;

export function valueAfter(node: SyntaxNode, mark: string): SyntaxNode | undefined {
  const at = node.children.findIndex((child) => child.kind === mark);
  return at === -1 ? undefined : node.children.slice(at + 1).find((child) => child.kind !== 'comment');
}

export function literalText(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  const negative =
    node.kind === 'unary_expression' && node.children[0]?.kind === '-' && node.children[1]?.kind === 'number';
  if (!LITERAL_KINDS.has(node.kind) && !negative) return undefined;
  const text = textOf(node);
  return text.length <= MAX_VALUE_CHARACTERS && !text.includes('\n') ? text : undefined;
}
