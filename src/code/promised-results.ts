/**
 * Whether a call of a function gives a promise, as far as its declaration tells: by `async`, its return type, its
 * documentation, or what it returns. Invariant: `no` is only said where no returned value can be a promise.
 */
import { childOfKind, FUNCTION_KINDS, hasChild, operands, visit, type SyntaxNode } from './syntax-tree.ts';

export function declaresPromise(
  node: SyntaxNode,
  comment: string | undefined,
  textOf: (node: SyntaxNode) => string,
): 'yes' | 'no' | 'maybe' {
  if (hasChild(node, 'async')) return hasChild(node, '*') ? 'maybe' : 'yes';
  if (node.kind.startsWith('generator') || hasChild(node, '*')) return 'maybe';
  const returnType = childOfKind(node, 'type_annotation');
  if (returnType !== undefined) {
    const written = textOf(returnType).replace(/^:\s*/u, '');
    if (/^Promise\b/u.test(written)) return 'yes';
    return /^(void|string|number|boolean|\w+\[\]|Buffer|Uint8Array|undefined|null)(\s*\|\s*(string|number|boolean|undefined|null))*$/u.test(
      written,
    )
      ? 'no'
      : 'maybe';
  }
  if (comment !== undefined && /@returns?\s*\{\s*Promise\b/u.test(comment)) return 'yes';
  const body = childOfKind(node, 'statement_block');
  if (body === undefined)
    return node.kind === 'arrow_function' && isPlainValue(operands(node).at(-1), textOf) ? 'no' : 'maybe';
  let result: 'yes' | 'no' | 'maybe' = 'no';
  visit(body, (inner) => {
    if (FUNCTION_KINDS.has(inner.kind)) return false;
    if (inner.kind !== 'return_statement') return true;
    const value = operands(inner)[0];
    if (value === undefined || isPlainValue(value, textOf)) return true;
    if (value.kind === 'new_expression' && /^new Promise\b/u.test(textOf(value))) result = 'yes';
    else if (result === 'no') result = 'maybe';
    return true;
  });
  return result;
}

const PLAIN_KINDS = new Set([
  'number',
  'string',
  'template_string',
  'true',
  'false',
  'null',
  'undefined',
  'unary_expression',
  'update_expression',
  'object',
  'array',
  'this',
  'regex',
  'function_expression',
  'arrow_function',
]);
const PLAIN_CALL =
  /(^|\.)(slice|substring|substr|join|map|filter|split|trim|replace|indexOf|includes|toString|toLowerCase|toUpperCase|concat|keys|values|entries|isArray|some|every|hasOwnProperty|test|startsWith|endsWith|String|Number|Boolean|stringify|floor|ceil|round|max|min|charCodeAt|repeat|padStart|has)$/u;

/** A value that is certainly no promise. */
function isPlainValue(node: SyntaxNode | undefined, textOf: (node: SyntaxNode) => string): boolean {
  if (node === undefined) return false;
  if (PLAIN_KINDS.has(node.kind)) return true;
  const parts = operands(node);
  if (node.kind === 'binary_expression')
    return !/^(&&|\|\||\?\?)$/u.test(node.children[1]?.kind ?? '') || parts.every((part) => isPlainValue(part, textOf));
  if (node.kind === 'parenthesized_expression') return parts.every((part) => isPlainValue(part, textOf));
  if (node.kind === 'ternary_expression') return parts.slice(1).every((part) => isPlainValue(part, textOf));
  if (node.kind === 'new_expression') return !/^new Promise\b/u.test(textOf(node));
  if (node.kind === 'call_expression') return PLAIN_CALL.test(textOf(node.children[0] ?? node));
  return false;
}
