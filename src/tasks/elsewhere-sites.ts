/**
 * Sites of the four bug kinds whose evidence lies elsewhere in the package. A site is only taken when the first name
 * that a reader of the changed line would look up leads to that evidence, whichever way the line was changed.
 * Invariant: the declaration that decides is outside the function, and the index that the agent asks is the one asked here.
 */
import { isInsideAsync } from '../code/functions.ts';
import type { Declaration } from '../code/declarations.ts';
import { namesOnLine, receiverOnLine } from '../code/line-names.ts';
import { isBuiltIn, lastSegment, lookupText } from '../code/lookup-text.ts';
import type { PackageIndex } from '../code/package-index.ts';
import { childOfKind, operands, type SyntaxNode } from '../code/syntax-tree.ts';
import type { Random } from '../domain/ids.ts';
import type { InventedNames } from './invented-names.ts';
import type { SiteCollector, SiteTexts } from './site-collector.ts';

export interface ElsewhereContext {
  readonly file: string;
  readonly index: PackageIndex;
  readonly invented: InventedNames;
  /** Short string constants of the package, to mistake one for another. */
  readonly strings: readonly string[];
  readonly random: Random;
  /** Names that the file also declares inside functions: there a module constant may be hidden. */
  readonly shadowed: ReadonlySet<string>;
  /** Names of parameters in the file: a call of one is not a call of what the package declares under that name. */
  readonly parameters: ReadonlySet<string>;
}

export function collectElsewhereSites(collector: SiteCollector, context: ElsewhereContext): void {
  const seen = new Set<number>();
  collector.visitBody((node) => {
    switch (node.kind) {
      case 'call_expression':
      case 'new_expression':
        addSwappedArguments(collector, context, node);
        if (node.kind === 'call_expression') addAwait(collector, context, node);
        break;
      case 'member_expression':
        addProperty(collector, context, node);
        addConstant(collector, context, node);
        break;
      case 'identifier':
        addConstant(collector, context, node);
        break;
      case 'number':
      case 'true':
      case 'false':
      case 'string':
        if (!seen.has(node.start)) addStatedValue(collector, context, node);
        seen.add(node.start);
        break;
      default:
    }
  });
}

/** The line of a one-line node with its text replaced. */
function lineWith(collector: SiteCollector, first: SyntaxNode, last: SyntaxNode, text: string): string | undefined {
  const start = first.start - collector.source.offset;
  const end = last.end - collector.source.offset;
  const line = collector.lineOf(start);
  if (start < 0 || line !== collector.lineOf(end)) return undefined;
  const from = collector.lineStart(line);
  const whole = collector.lineText(line);
  return whole.slice(0, start - from) + text + whole.slice(end - from);
}

interface Answer {
  readonly name: string | undefined;
  readonly declaration: Declaration | undefined;
  readonly text: string;
}

/** What looking up the first name of the changed line says. */
function firstAnswer(
  collector: SiteCollector,
  context: ElsewhereContext,
  change: { before: string; after: string; offset: number },
): Answer {
  const [name] = namesOnLine(change);
  if (name === undefined) return { name: undefined, declaration: undefined, text: '' };
  const receiver = receiverOnLine(change.after, name);
  const line = collector.source.startLine + collector.lineOf(change.offset - collector.source.offset);
  const declaration = context.index.lookUp(name, {
    file: context.file,
    line,
    ...(receiver === undefined ? {} : { receiver }),
  });
  return { name, declaration, text: lookupText(name, declaration, change.after) };
}

function isOutside(collector: SiteCollector, context: ElsewhereContext, declaration: Declaration): boolean {
  const { startLine, endLine } = collector.source;
  return declaration.file !== context.file || declaration.line < startLine || declaration.line > endLine;
}

/** Both directions of a change must lead, by the first look-up, to the same declaration outside the function. */
function decidingDeclaration(
  collector: SiteCollector,
  context: ElsewhereContext,
  nodes: { first: SyntaxNode; last: SyntaxNode },
  texts: { right: string; wrong: string },
): Declaration | undefined {
  const right = lineWith(collector, nodes.first, nodes.last, texts.right);
  const wrong = lineWith(collector, nodes.first, nodes.last, texts.wrong);
  if (right === undefined || wrong === undefined) return undefined;
  const offset = nodes.first.start;
  const toWrong = firstAnswer(collector, context, { before: right, after: wrong, offset });
  const toRight = firstAnswer(collector, context, { before: wrong, after: right, offset });
  if (toWrong.declaration === undefined || toWrong.declaration !== toRight.declaration) return undefined;
  return isOutside(collector, context, toWrong.declaration) ? toWrong.declaration : undefined;
}

function addSite(
  collector: SiteCollector,
  kind: Parameters<SiteCollector['add']>[0],
  nodes: { first: SyntaxNode; last: SyntaxNode },
  texts: SiteTexts & { declaration: Declaration },
): void {
  const { declaration, ...rest } = texts;
  collector.add(
    kind,
    nodes.first,
    { ...rest, evidence: { name: declaration.name, file: declaration.file, line: declaration.line } },
    nodes.last,
  );
}

function callsParameter(collector: SiteCollector, { parameters }: ElsewhereContext, node: SyntaxNode): boolean {
  const callee = node.children.find((child) => child.kind !== 'new');
  return callee?.kind === 'identifier' && parameters.has(collector.textOf(callee));
}

function addSwappedArguments(collector: SiteCollector, context: ElsewhereContext, node: SyntaxNode): void {
  if (callsParameter(collector, context, node)) return;
  const list = childOfKind(node, 'arguments');
  const given = list === undefined ? [] : operands(list);
  if (given.length < 2 || given.some((argument) => argument.kind === 'spread_element')) return;
  const names = given.map((argument) => lastSegment(collector.textOf(argument)).toLowerCase());
  for (let at = 0; at + 1 < given.length; at++) {
    const [first, second] = [given[at], given[at + 1]];
    if (first === undefined || second === undefined || names[at] === names[at + 1]) continue;
    if (names[at] === '...' || names[at + 1] === '...') continue;
    const between = collector.between(first, second);
    const right = collector.textOf(first) + between + collector.textOf(second);
    const wrong = collector.textOf(second) + between + collector.textOf(first);
    const nodes = { first, last: second };
    const declaration = decidingDeclaration(collector, context, nodes, { right, wrong });
    if (declaration === undefined) continue;
    const parameters = declaration.parameters.map((parameter) => parameter.toLowerCase().replace(/^_/u, ''));
    const standsRight = Number(parameters[at] === names[at]) + Number(parameters[at + 1] === names[at + 1]);
    const standsCrosswise = Number(parameters[at] === names[at + 1]) + Number(parameters[at + 1] === names[at]);
    const isShown =
      at + 1 < 5 &&
      collector.textOf(node.children.find((child) => child.kind !== 'new') ?? node).endsWith(declaration.name);
    if (standsRight >= 1 && standsCrosswise === 0 && isShown)
      addSite(collector, 'swapped-arguments', nodes, { right, wrong, declaration });
  }
}

/** Where a lost `await` leaves a promise in the place of its value; a returned call may go without. */
const AWAIT_HOLDERS = new Set([
  'expression_statement',
  'variable_declarator',
  'assignment_expression',
  'arguments',
  'parenthesized_expression',
  'binary_expression',
  'unary_expression',
  'pair',
  'array',
  'spread_element',
]);

function addAwait(collector: SiteCollector, context: ElsewhereContext, node: SyntaxNode): void {
  if (callsParameter(collector, context, node)) return;
  const awaited = node.parent?.kind === 'await_expression' ? node.parent : undefined;
  const outer = awaited ?? node;
  if (!AWAIT_HOLDERS.has(outer.parent?.kind ?? '') || !isInsideAsync(node)) return;
  const callee = node.children[0];
  if (callee === undefined || !/^[\w$.#]+$/u.test(collector.textOf(callee))) return;
  // Only the head of the call is exchanged, so that a call over several lines is a site too.
  const head = collector.textOf(callee);
  const first = awaited ?? callee;
  const text = { plain: head, awaited: `await ${head}` };
  if (awaited !== undefined && collector.between(awaited.children[0] ?? awaited, callee) !== ' ') return;
  const declaration = decidingDeclaration(
    collector,
    context,
    { first, last: callee },
    { right: text.awaited, wrong: text.plain },
  );
  if (
    declaration === undefined ||
    (declaration.kind !== 'function' && declaration.kind !== 'method') ||
    !head.endsWith(declaration.name)
  )
    return;
  const agreeing = context.index
    .declarationsOf(declaration.name)
    .filter(
      (other) =>
        other.kind === declaration.kind && (declaration.file !== context.file || other.file === declaration.file),
    );
  if (agreeing.some((other) => other.isAsync !== declaration.isAsync)) return;
  const span = [first.start - collector.source.offset, callee.end - collector.source.offset];
  const evidence = { name: declaration.name, file: declaration.file, line: declaration.line };
  if (awaited !== undefined && declaration.isAsync)
    collector.addSpans('missing-await', span, { right: text.awaited, wrong: text.plain, evidence });
  // A call that gives no promise may be awaited or not.
  if (!declaration.isAsync && agreeing.every((other) => other.mayReturnPromise !== true))
    collector.addSpans(
      'missing-await',
      span,
      awaited === undefined
        ? { right: text.plain, same: text.awaited, evidence }
        : { right: text.awaited, same: text.plain, evidence },
    );
}

function addProperty(collector: SiteCollector, context: ElsewhereContext, node: SyntaxNode): void {
  const property = node.children.at(-1);
  const isAssigned = node.parent?.kind === 'assignment_expression' && node.parent.children[0] === node;
  if (property?.kind !== 'property_identifier' || isAssigned) return;
  const right = collector.textOf(property);
  // A name that stands twice in the function vouches for itself.
  if (right.length < 3 || isBuiltIn(right) || countWord(collector.source.text, right) > 1) return;
  const wrong = context.invented.nameLike(right, context.random);
  if (wrong === undefined) return;
  const lines = {
    right: lineWith(collector, property, property, right),
    wrong: lineWith(collector, property, property, wrong),
  };
  if (lines.right === undefined || lines.wrong === undefined) return;
  const found = firstAnswer(collector, context, { before: lines.wrong, after: lines.right, offset: property.start });
  const lost = firstAnswer(collector, context, { before: lines.right, after: lines.wrong, offset: property.start });
  if (found.name !== right || found.declaration === undefined || lost.name !== wrong || lost.declaration !== undefined)
    return;
  if (!isOutside(collector, context, found.declaration)) return;
  addSite(
    collector,
    'unknown-property',
    { first: property, last: property },
    { right, wrong, declaration: found.declaration },
  );
}

const CONSTANT_HOLDERS = new Set([
  'arguments',
  'binary_expression',
  'return_statement',
  'ternary_expression',
  'parenthesized_expression',
  'subscript_expression',
]);
const ASSIGNING_HOLDERS = new Set(['pair', 'variable_declarator', 'assignment_expression']);

function countWord(text: string, word: string): number {
  let count = 0;
  for (let at = text.indexOf(word); at !== -1; at = text.indexOf(word, at + word.length))
    if (!/[\w$]/u.test(text[at - 1] ?? '') && !/[\w$]/u.test(text[at + word.length] ?? '')) count++;
  return count;
}

/** A use of a constant, `LIMIT` or `limits.LIMIT`, may as well be its value; the comment keeps its name on the line. */
function addConstant(collector: SiteCollector, context: ElsewhereContext, node: SyntaxNode): void {
  const holder = node.parent;
  if (holder === undefined) return;
  if (!CONSTANT_HOLDERS.has(holder.kind) && !(ASSIGNING_HOLDERS.has(holder.kind) && holder.children.at(-1) === node))
    return;
  const same = collector.textOf(node);
  const path = /^(?:([A-Za-z_$][\w$]*)\.)?([A-Za-z_$][\w$]*)$/u.exec(same);
  const [receiver, name] = [path?.[1], path?.[2]];
  if (name === undefined || name.length < 3 || (receiver !== undefined && !/^[A-Z][A-Z\d_]+$/u.test(name))) return;
  if (receiver === undefined && context.shadowed.has(name)) return;
  const line = collector.source.startLine + collector.lineOf(node.start - collector.source.offset);
  const declaration = context.index.lookUp(name, {
    file: context.file,
    line,
    ...(receiver === undefined ? {} : { receiver }),
  });
  if (declaration?.value === undefined || (declaration.kind !== 'constant' && !/^[A-Z][A-Z\d_]+$/u.test(name))) return;
  // A value that spells its own name can be told without looking.
  if (declaration.value.slice(1, -1) === name) return;
  const value = otherValue(declaration.value, context);
  if (value === undefined) return;
  const right = `${declaration.value} /* ${name} */`;
  const wrong = `${value} /* ${name} */`;
  if (decidingDeclaration(collector, context, { first: node, last: node }, { right, wrong }) !== declaration) return;
  if (!isShownBeside(collector, { first: node, text: wrong, value }, declaration)) return;
  addSite(collector, 'contradicted-constant', { first: node, last: node }, { right, wrong, same, declaration });
}

/** The look-up's text sets the wrong literal beside the declared one. */
function isShownBeside(
  collector: SiteCollector,
  place: { first: SyntaxNode; text: string; value: string },
  declaration: Declaration,
): boolean {
  const line = lineWith(collector, place.first, place.first, place.text);
  return line !== undefined && lookupText(declaration.name, declaration, line).endsWith(` here ${place.value}`);
}

const VALUE_HOLDERS = new Set([
  'pair',
  'assignment_expression',
  'variable_declarator',
  'assignment_pattern',
  'object_assignment_pattern',
  'binary_expression',
  'required_parameter',
  'optional_parameter',
]);

/** A literal that is given to a name whose declared or documented value is the same literal. */
function addStatedValue(collector: SiteCollector, context: ElsewhereContext, node: SyntaxNode): void {
  const right = collector.textOf(node);
  if (right.length > 20 || /\\/u.test(right)) return;
  const holder = node.parent?.kind;
  if (holder === undefined || !VALUE_HOLDERS.has(holder)) return;
  // Flags are set and reset; only where one is a default does its declaration say what it must be.
  if (/^(true|false)$/u.test(right) && (holder === 'assignment_expression' || holder === 'variable_declarator')) return;
  // 0 and 1 are where everything starts: that two names share them says nothing.
  if (right === '0' || right === '1') return;
  const wrong = otherValue(right, context);
  if (wrong === undefined) return;
  const declaration = decidingDeclaration(collector, context, { first: node, last: node }, { right, wrong });
  if (declaration?.value === undefined || !sameLiteral(declaration.value, right)) return;
  if (!isShownBeside(collector, { first: node, text: wrong, value: wrong }, declaration)) return;
  addSite(collector, 'contradicted-constant', { first: node, last: node }, { right, wrong, declaration });
}

function sameLiteral(a: string, b: string): boolean {
  return a.replaceAll('"', "'") === b.replaceAll('"', "'");
}

/** Another plausible literal of the same type. */
function otherValue(text: string, { random, strings }: ElsewhereContext): string | undefined {
  if (text === 'true') return 'false';
  if (text === 'false') return 'true';
  if (/^['"]/u.test(text)) {
    const quote = text[0] ?? "'";
    const others = strings.filter((other) => other !== text.slice(1, -1));
    return others.length === 0 || text.length < 4 ? undefined : quote + random.pick(others) + quote;
  }
  if (/^0x[\da-f]{1,6}$/iu.test(text)) {
    const other = (Number(text) + 1 + random.below(3)).toString(16).padStart(text.length - 2, '0');
    return text.slice(0, 2) + (/[A-F]/u.test(text) ? other.toUpperCase() : other);
  }
  if (/^\d*\.\d{1,3}$/u.test(text)) return String(Number((Number(text) * random.pick([2, 0.5, 1.5])).toFixed(4)));
  if (!/^-?\d+$/u.test(text)) return undefined;
  const value = Number(text);
  const candidates = Math.abs(value) < 10 ? [value + 1, value + 2, value - 1] : [value * 2, value * 10, value + 1];
  if (value >= 10 && value % 10 === 0) candidates.push(value / 10, value / 2);
  else if (value >= 10 && value % 2 === 0) candidates.push(value / 2);
  const other = random.pick(candidates);
  return other === value || !Number.isInteger(other) || (value >= 0 && other < 0) ? undefined : String(other);
}
