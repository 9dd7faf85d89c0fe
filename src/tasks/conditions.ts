/**
 * Whether an expression is only asked for its truth: a part of the condition of `if`, `while` or `do`.
 */
import type { SyntaxNode } from '../code/syntax-tree.ts';

const CONDITION_HOLDERS = new Set(['if_statement', 'while_statement', 'do_statement']);

export function isConditionPart(node: SyntaxNode): boolean {
  let at = node.parent;
  while (at !== undefined && (at.kind === 'binary_expression' || at.kind === 'parenthesized_expression')) {
    const holder = at.parent;
    if (at.kind === 'parenthesized_expression' && holder !== undefined && CONDITION_HOLDERS.has(holder.kind))
      return true;
    if (at.kind === 'binary_expression' && !/^(&&|\|\|)$/u.test(at.children[1]?.kind ?? '')) return false;
    at = holder;
  }
  return false;
}
