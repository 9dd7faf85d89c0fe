/**
 * Sites that only ever change how a program is written: comments, quotes, templates, counters, declarations, and local
 * names renamed wherever they stand. Invariant: both texts run the same.
 */
import { childOfKind, FUNCTION_KINDS, operands, type SyntaxNode } from '../code/syntax-tree.ts';
import type { SiteCollector } from './site-collector.ts';

const MAX_RENAMED_LINES = 3;
const OTHER_NAME: ReadonlyMap<string, string> = new Map(
  Object.entries({
    i: 'index',
    j: 'inner',
    n: 'count',
    len: 'length',
    res: 'response',
    req: 'request',
    err: 'error',
    error: 'err',
    cb: 'callback',
    fn: 'func',
    opts: 'options',
    options: 'opts',
    val: 'value',
    value: 'val',
    key: 'name',
    name: 'label',
    obj: 'object',
    str: 'text',
    text: 'str',
    arr: 'list',
    list: 'items',
    items: 'list',
    result: 'output',
    ret: 'result',
    data: 'payload',
    idx: 'index',
    index: 'idx',
    args: 'params',
    ctx: 'context',
    el: 'element',
    node: 'current',
    path: 'location',
    file: 'filename',
    msg: 'message',
    message: 'msg',
    buf: 'buffer',
    buffer: 'buf',
    start: 'begin',
    end: 'stop',
    parent: 'owner',
    type: 'kind',
    url: 'address',
    config: 'settings',
    params: 'args',
    item: 'entry',
    entry: 'item',
    prop: 'property',
    tmp: 'temp',
    temp: 'tmp',
    num: 'number',
    match: 'found',
    current: 'active',
    length: 'size',
    count: 'total',
  }),
);

export function collectBenignSites(collector: SiteCollector): void {
  collector.visitBody((node) => {
    const written = collector.textOf(node);
    switch (node.kind) {
      case 'comment':
        addComment(collector, node, written);
        break;
      case 'string':
        if (/^'[^'"\\]*'$/u.test(written))
          collector.add('quotes', node, { right: written, same: `"${written.slice(1, -1)}"` });
        else if (/^"[^'"\\]*"$/u.test(written))
          collector.add('quotes', node, { right: written, same: `'${written.slice(1, -1)}'` });
        break;
      case 'binary_expression':
        addTemplate(collector, node);
        addUndefinedTest(collector, node, written);
        break;
      case 'lexical_declaration': {
        const keyword = childOfKind(node, 'const');
        if (keyword !== undefined) collector.add('declaration', keyword, { right: 'const', same: 'let' });
        break;
      }
      default:
    }
  });
  addRenames(collector);
}

function addComment(collector: SiteCollector, node: SyntaxNode, written: string): void {
  const match = /^(\/\/ ?)([A-Za-z].{4,})$/u.exec(written);
  const mark = match?.[1];
  const words = match?.[2];
  if (mark === undefined || words === undefined || /eslint|istanbul|@|c8 |prettier/u.test(words)) return;
  const first = words.slice(0, 1);
  const other = words.endsWith('.') ? words.slice(0, -1) : `${words}.`;
  const recased = /^[A-Za-z][a-z]+\b/u.test(words)
    ? (first === first.toUpperCase() ? first.toLowerCase() : first.toUpperCase()) + other.slice(1)
    : other;
  collector.add('comment', node, { right: written, same: mark + recased });
}

/** `'a' + b` as a template. */
function addTemplate(collector: SiteCollector, node: SyntaxNode): void {
  const [left, operator, right] = node.children;
  if (left === undefined || right === undefined || operator?.kind !== '+') return;
  const parts = [left, right].map((part) => {
    const written = collector.textOf(part);
    if (part.kind === 'string') return /^.[^\\`$'"]*.$/u.test(written) ? written.slice(1, -1) : undefined;
    return part.kind === 'identifier' || part.kind === 'member_expression' ? `\${${written}}` : undefined;
  });
  if (parts.includes(undefined) || (left.kind === 'string') === (right.kind === 'string')) return;
  // Inside a longer sum the parts may be numbers that are to be added first.
  if (node.parent?.kind === 'binary_expression') return;
  collector.add('template', node, { right: collector.textOf(node), same: `\`${parts.join('')}\`` });
}

function addUndefinedTest(collector: SiteCollector, node: SyntaxNode, written: string): void {
  const compared = /^([\w$.]+) (===|!==) undefined$/u.exec(written);
  if (compared !== null)
    collector.add('undefined-check', node, {
      right: written,
      same: `typeof ${compared[1]} ${compared[2]} 'undefined'`,
    });
  const typed = /^typeof ([\w$.]+\.[\w$]+) (===|!==) ['"]undefined['"]$/u.exec(written);
  if (typed !== null)
    collector.add('undefined-check', node, { right: written, same: `${typed[1]} ${typed[2]} undefined` });
}

/** Local names with few uses, each renamed on all the lines where it stands. */
function addRenames(collector: SiteCollector): void {
  const uses = new Map<string, SyntaxNode[]>();
  const declared = new Set<string>();
  const forbidden = new Set<string>();
  let isPlain = true;
  collector.visitBody((node) => {
    if (
      node.kind === 'shorthand_property_identifier' ||
      node.kind === 'shorthand_property_identifier_pattern' ||
      node.kind === 'type_identifier'
    )
      forbidden.add(collector.textOf(node));
    if (node.kind === 'property_identifier') forbidden.add(`.${collector.textOf(node)}`);
    if (node.kind !== 'identifier') return;
    const name = collector.textOf(node);
    if (name === 'eval' || name === 'arguments') isPlain = false;
    uses.set(name, [...(uses.get(name) ?? []), node]);
    const holder = node.parent;
    if (holder?.kind === 'variable_declarator' && holder.children[0] === node) declared.add(name);
    if (holder?.kind === 'formal_parameters' && isOwnParameter(collector, holder)) declared.add(name);
  });
  if (!isPlain) return;
  for (const name of declared) {
    const nodes = uses.get(name) ?? [];
    const other = OTHER_NAME.get(name);
    if (other === undefined || forbidden.has(name) || uses.has(other) || forbidden.has(other)) continue;
    if (nodes.length < 2 || declarationsOf(collector, nodes) !== 1) continue;
    const spans = nodes.flatMap((node) => [node.start - collector.source.offset, node.end - collector.source.offset]);
    const lines = new Set(nodes.map((node) => collector.lineOf(node.start - collector.source.offset)));
    if (lines.size <= MAX_RENAMED_LINES) collector.addSpans('rename', spans, { right: name, same: other });
  }
}

function isOwnParameter(collector: SiteCollector, list: SyntaxNode): boolean {
  return list.parent === collector.source.node;
}

function declarationsOf(collector: SiteCollector, nodes: readonly SyntaxNode[]): number {
  return nodes.filter((node) => {
    const holder = node.parent;
    return (
      (holder?.kind === 'variable_declarator' && holder.children[0] === node) ||
      holder?.kind === 'formal_parameters' ||
      holder?.kind === 'catch_clause' ||
      (holder !== undefined && FUNCTION_KINDS.has(holder.kind) && childOfKind(holder, 'identifier') === node) ||
      (holder?.kind === 'assignment_pattern' && holder.children[0] === node) ||
      (holder?.kind === 'for_in_statement' && operands(holder)[0] === node)
    );
  }).length;
}
