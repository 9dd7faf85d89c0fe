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
const OPAQUE = new Set(['string', 'regex', 'comment', 'number', 'string_fragment']);
const NAMES = new Set([
  'identifier',
  'property_identifier',
  'private_property_identifier',
  'shorthand_property_identifier',
  'shorthand_property_identifier_pattern',
  'type_identifier',
]);
/** Tokens whose kind is their text, less those that share it with a node that has children. */
const KEYWORDS = new Set(
  'async await break case catch const continue debugger default delete do else export extends false finally for from function if implements import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while with yield get set as readonly abstract private public protected declare enum keyof'.split(
    ' ',
  ),
);
const NAME = /#?[\w$]+/uy;
const BLANK = /\s*/uy;

export function parseSource(text: string, language: Language): SyntaxNode {
  const root = parse(language === 'typescript' ? Lang.TypeScript : Lang.JavaScript, text).root();
  return new TreeCopy(text).copy(root, undefined);
}

/**
 * Copies in reading order, so that most positions follow from the text: a token starts after the blanks that follow the
 * one before it. Only what cannot be measured so is asked of the parser, whose ranges are dear.
 */
class TreeCopy {
  readonly #text: string;
  #cursor = 0;

  constructor(text: string) {
    this.#text = text;
  }

  copy(node: SgNode, parent: SyntaxNode | undefined): SyntaxNode {
    const kind = String(node.kind());
    const length = this.#tokenLength(kind);
    if (length > 0) return this.#leaf(kind, this.#cursor, this.#cursor + length, parent);
    const inner = OPAQUE.has(kind) ? [] : node.children();
    if (inner.length === 0) {
      const { start, end } = node.range();
      return this.#leaf(kind, start.index, end.index, parent);
    }
    const children: SyntaxNode[] = [];
    const result = { kind, start: 0, end: 0, parent, children };
    for (const child of inner) children.push(this.copy(child, result));
    result.start = children[0]?.start ?? 0;
    result.end = children.at(-1)?.end ?? 0;
    return result;
  }

  #leaf(kind: string, start: number, end: number, parent: SyntaxNode | undefined): SyntaxNode {
    this.#cursor = end;
    return { kind, start, end, parent, children: [] };
  }

  /** Moves over blanks and measures the token there; 0 when the text does not tell. */
  #tokenLength(kind: string): number {
    const isName = NAMES.has(kind);
    if (!isName && !KEYWORDS.has(kind) && /^[a-z]/iu.test(kind)) return 0;
    BLANK.lastIndex = this.#cursor;
    BLANK.exec(this.#text);
    const start = BLANK.lastIndex;
    let length = kind.length;
    if (isName) {
      NAME.lastIndex = start;
      length = NAME.exec(this.#text)?.[0].length ?? 0;
      // Beyond ASCII, or with an escape, a name may go on.
      if (length === 0 || /[\\\u0080-\uffff]/u.test(this.#text[start + length] ?? '')) return 0;
    } else if (!this.#text.startsWith(kind, start)) return 0;
    this.#cursor = start;
    return length;
  }
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
  return node.children.filter(
    (child) => child.kind !== 'comment' && /^[a-z_]{2,}$/u.test(child.kind) && !KEYWORD_TOKENS.has(child.kind),
  );
}

const KEYWORD_TOKENS = new Set([
  'async',
  'await',
  'function',
  'new',
  'return',
  'typeof',
  'void',
  'delete',
  'in',
  'of',
  'instanceof',
  'as',
  'let',
  'const',
  'var',
  'optional_chain',
]);

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
