/**
 * JavaScript and TypeScript text as a plain tree. The parser is tree-sitter (through ast-grep); its nodes are copied
 * once, because walking them across the native boundary costs far more than walking objects.
 * Invariant: offsets are UTF-16 units into the parsed text, and children lie inside their parent in order.
 */
import { Lang, parse, type SgNode } from '@ast-grep/napi';

export interface SyntaxNode {
  /** Grammar kind such as `call_expression`; for keywords and punctuation, their text. */
  readonly kind: string;
  readonly start: number;
  readonly end: number;
  readonly parent: SyntaxNode | undefined;
  readonly children: readonly SyntaxNode[];
}

export type Language = 'javascript' | 'typescript';

/** Strings, regular expressions and comments are kept whole: nothing asks what is inside them. */
const OPAQUE = new Set(['string', 'regex', 'comment', 'number', 'identifier', 'property_identifier']);

export function parseSource(text: string, language: Language): SyntaxNode {
  const root = parse(language === 'typescript' ? Lang.TypeScript : Lang.JavaScript, text).root();
  return copy(root, undefined);
}

function copy(node: SgNode, parent: SyntaxNode | undefined): SyntaxNode {
  const kind = String(node.kind());
  const { start, end } = node.range();
  const children: SyntaxNode[] = [];
  const result: SyntaxNode = { kind, start: start.index, end: end.index, parent, children };
  if (!OPAQUE.has(kind)) for (const child of node.children()) children.push(copy(child, result));
  return result;
}

/** Visits a node and all below it, parents first; returning false skips what is below. */
export function visit(node: SyntaxNode, enter: (node: SyntaxNode) => boolean | void): void {
  if (enter(node) === false) return;
  for (const child of node.children) visit(child, enter);
}

export function childOfKind(node: SyntaxNode, ...kinds: readonly string[]): SyntaxNode | undefined {
  for (const child of node.children) if (kinds.includes(child.kind)) return child;
  return undefined;
}

export function hasChild(node: SyntaxNode, kind: string): boolean {
  return childOfKind(node, kind) !== undefined;
}

/** Children without comments and punctuation: operands, arguments, parameters. */
export function operands(node: SyntaxNode): SyntaxNode[] {
  return node.children.filter((child) => child.kind !== 'comment' && /^[a-z_]{2,}$/u.test(child.kind) && !KEYWORD_TOKENS.has(child.kind));
}

const KEYWORD_TOKENS = new Set(['async', 'await', 'function', 'new', 'return', 'typeof', 'void', 'delete', 'in', 'of', 'instanceof', 'as', 'let', 'const', 'var', 'optional_chain']);

export const FUNCTION_KINDS: ReadonlySet<string> = new Set([
  'function_declaration',
  'function_expression',
  'generator_function_declaration',
  'generator_function',
  'arrow_function',
  'method_definition',
]);

export const CLASS_KINDS: ReadonlySet<string> = new Set(['class_declaration', 'class', 'abstract_class_declaration']);

export function closest(node: SyntaxNode, kinds: ReadonlySet<string>): SyntaxNode | undefined {
  for (let at = node.parent; at !== undefined; at = at.parent) if (kinds.has(at.kind)) return at;
  return undefined;
}

export function containsError(node: SyntaxNode): boolean {
  if (node.kind === 'ERROR' || (node.start === node.end && node.children.length === 0)) return true;
  return node.children.some(containsError);
}

/** Maps offsets to 1-based lines. */
export class LineMap {
  readonly #starts: number[] = [0];
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
    for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) this.#starts.push(at + 1);
  }

  lineAt(offset: number): number {
    let low = 0;
    let high = this.#starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#starts[middle] ?? 0) <= offset) low = middle;
      else high = middle - 1;
    }
    return low + 1;
  }

  startOf(line: number): number {
    return this.#starts[line - 1] ?? this.#text.length;
  }

  /** End of a line without its line break. */
  endOf(line: number): number {
    const next = this.#starts[line];
    return next === undefined ? this.#text.length : next - 1;
  }
}
