/**
 * Tasks from a corpus and a seed. One sampler draws every changed line: kind first, then site; only then does each edit
 * get its role. So neither the place nor the kind of a line tells whether it is a bug, beyond what its site allows.
 * Invariant: the same corpus, seed and options give the same task, byte for byte.
 */
import { createHash } from 'node:crypto';

import { HoneError } from '../domain/errors.ts';
import { createRandom, deriveSeed, type Random, taskId } from '../domain/ids.ts';
import {
  BUG_CATEGORIES,
  type Bug,
  type BugCategory,
  type ChangedLine,
  type Edit,
  ELSEWHERE_CATEGORIES,
  type Task,
} from '../domain/task.ts';
import type { Corpus, CorpusFunction } from './corpus.ts';
import { describeBug } from './gold.ts';
import type { Site, SiteKind } from './site.ts';

export interface DrawOptions {
  /** Share of tasks that hold a bug. */
  readonly bugShare?: number;
  /** Share of changed lines whose evidence lies elsewhere, where the function offers such sites. */
  readonly elsewhereShare?: number;
}

const DEFAULT_BUG_SHARE = 2 / 3;
const DEFAULT_ELSEWHERE_SHARE = 0.6;
/** Share of functions that are picked because they offer an elsewhere kind; the others are picked uniformly. */
const PICKED_FOR_ELSEWHERE = 0.95;
/** Share of changed lines that only change how the program is written, where the function offers such sites. */
const BENIGN_SHARE = 0.08;
const MAX_BUGS = 3;
const MAX_ATTEMPTS_A_TASK = 20;
/** A benign change of a line that could be broken: rewritten, rather than repaired, as often as this. */
const EQUIVALENT_SHARE = 0.4;
/** So often does a call that gives no promise lose a needless `await`, so that losing one is a bug half of the time. */
const NEEDLESS_AWAIT_LOST = 0.36;

/** Rarer kinds come more often, so that none of the four fills most of the lines. */
const ELSEWHERE_WEIGHT: Readonly<Record<string, number>> = {
  'unknown-property': 1,
  'swapped-arguments': 2,
  'missing-await': 3,
  'contradicted-constant': 3,
};

const BUG_KINDS: ReadonlySet<string> = new Set(BUG_CATEGORIES);
const ELSEWHERE_KINDS: ReadonlySet<string> = new Set(ELSEWHERE_CATEGORIES);

/** Throws `invalid-task` when no function of the corpus fits its size limits. */
export function drawTask(corpus: Corpus, seed: number, options: DrawOptions = {}): Task {
  const random = createRandom(deriveSeed(seed, 'task', corpus.split));
  return drawFromFunction(corpus, pickFunction(corpus, random), { ...options, seed, random });
}

/** Distinct tasks; no function comes twice before the pool is used up. */
export function drawTasks(
  corpus: Corpus,
  options: DrawOptions & { readonly seed: number; readonly count: number },
): Task[] {
  const tasks: Task[] = [];
  const ids = new Set<string>();
  const used = new Set<number>();
  for (let attempt = 0; tasks.length < options.count; attempt++) {
    if (attempt > 100 + options.count * MAX_ATTEMPTS_A_TASK) {
      throw new HoneError(
        'invalid-task',
        `Only ${tasks.length} distinct tasks of ${options.count} could be drawn from ${corpus.functions.length} functions.`,
        {
          cure: 'Ask for fewer tasks or raise the size limits of the corpus.',
        },
      );
    }
    const seed = deriveSeed(options.seed, 'draw', attempt);
    const random = createRandom(deriveSeed(seed, 'task', corpus.split));
    let index = pickFunction(corpus, random);
    if (used.size >= corpus.functions.length) used.clear();
    for (let retry = 0; used.has(index); retry++)
      index = retry < 50 ? pickFunction(corpus, random) : (index + 1) % corpus.functions.length;
    used.add(index);
    const task = drawFromFunction(corpus, index, { ...options, seed, random });
    if (ids.has(task.id)) continue;
    ids.add(task.id);
    tasks.push(task);
  }
  return tasks;
}

function pickFunction(corpus: Corpus, random: Random): number {
  const offered = ELSEWHERE_CATEGORIES.filter((kind) => corpus.elsewhere.has(kind));
  if (offered.length > 0 && random.next() < PICKED_FOR_ELSEWHERE)
    return random.pick(corpus.elsewhere.get(random.pick(offered)) ?? []);
  return random.below(corpus.functions.length);
}

type Role = Edit['role'];

interface ChosenEdit {
  readonly site: Site;
  readonly role: Role;
  readonly before: string;
  readonly after: string;
}

function drawFromFunction(
  corpus: Corpus,
  index: number,
  options: DrawOptions & { readonly seed: number; readonly random: Random },
): Task {
  const source = corpus.functions[index];
  if (source === undefined) {
    throw new HoneError('invalid-task', 'No function of the corpus fits its size limits.', {
      cure: 'Raise maxCharacters or maxLines.',
    });
  }
  const { bugShare = DEFAULT_BUG_SHARE, elsewhereShare = DEFAULT_ELSEWHERE_SHARE, seed, random } = options;
  const wanted = 3 + random.below(4);
  const sites = chooseSites(source, { wanted, elsewhereShare, random });
  const edits = assignRoles(sites, { bugShare, random });
  return composeTask(corpus, source, { edits, seed });
}

function chooseSites(
  source: CorpusFunction,
  { wanted, elsewhereShare, random }: { wanted: number; elsewhereShare: number; random: Random },
): Site[] {
  const byKind = new Map<SiteKind, Site[]>();
  for (const site of source.sites) {
    const list = byKind.get(site.kind);
    if (list === undefined) byKind.set(site.kind, [site]);
    else list.push(site);
  }
  const chosen: Site[] = [];
  const taken = new Set<number>();
  const isFree = (site: Site): boolean => site.lines.every((line) => !taken.has(line));
  while (taken.size < wanted) {
    const local: SiteKind[] = [];
    const elsewhere: SiteKind[] = [];
    const benign: SiteKind[] = [];
    for (const [kind, list] of byKind) {
      const free = list.filter((site) => isFree(site) && site.lines.length + taken.size <= Math.max(wanted, 3));
      byKind.set(kind, free);
      if (free.length === 0) continue;
      if (ELSEWHERE_KINDS.has(kind)) elsewhere.push(kind);
      else if (BUG_KINDS.has(kind)) local.push(kind);
      else benign.push(kind);
    }
    const draw = random.next();
    let kinds = firstNonEmpty(local, elsewhere, benign);
    if (draw < BENIGN_SHARE) kinds = firstNonEmpty(benign, kinds);
    else if (draw < BENIGN_SHARE + elsewhereShare) kinds = firstNonEmpty(elsewhere, kinds);
    if (kinds.length === 0) break;
    const site = random.pick(byKind.get(pickKind(kinds, random)) ?? []);
    chosen.push(site);
    for (const line of site.lines) taken.add(line);
  }
  return chosen;
}

function pickKind(kinds: readonly SiteKind[], random: Random): SiteKind {
  let total = 0;
  for (const kind of kinds) total += ELSEWHERE_WEIGHT[kind] ?? 1;
  let draw = random.next() * total;
  for (const kind of kinds) {
    draw -= ELSEWHERE_WEIGHT[kind] ?? 1;
    if (draw < 0) return kind;
  }
  return random.pick(kinds);
}

function firstNonEmpty<T>(...lists: readonly (readonly T[])[]): readonly T[] {
  return lists.find((list) => list.length > 0) ?? [];
}

function assignRoles(sites: readonly Site[], { bugShare, random }: { bugShare: number; random: Random }): ChosenEdit[] {
  const breakable = sites.map((_, index) => index).filter((index) => sites[index]?.wrong !== undefined);
  const count =
    random.next() < bugShare
      ? Math.min(1 + random.below(MAX_BUGS), breakable.length, Math.max(1, sites.length - 1))
      : 0;
  const bugs = new Set<number>();
  while (bugs.size < count) bugs.add(random.pick(breakable));
  return sites.map((site, index) => chooseTexts(site, bugs.has(index), random));
}

function chooseTexts(site: Site, isBug: boolean, random: Random): ChosenEdit {
  const { kind, right, same, wrong } = site;
  const isRewritten = same !== undefined && (wrong === undefined || random.next() < EQUIVALENT_SHARE);
  // A constant that gives way to its value may give way to the right one or to a wrong one: the line does not tell.
  if (isBug && wrong !== undefined)
    return { site, role: 'bug', before: isRewritten && kind === 'contradicted-constant' ? same : right, after: wrong };
  if (isRewritten) {
    const forward = isForward(site, random);
    return { site, role: 'equivalent', before: forward ? right : same, after: forward ? same : right };
  }
  if (wrong === undefined) throw new RangeError(`a ${kind} site offers neither a break nor a rewrite`);
  return { site, role: 'inverse', before: wrong, after: right };
}

/** Whether an equivalent rewrite goes from `right` to `same`. */
function isForward({ kind, right }: Site, random: Random): boolean {
  if (kind === 'contradicted-constant') return false;
  if (kind === 'missing-await') return random.next() < NEEDLESS_AWAIT_LOST === right.startsWith('await ');
  return random.next() < 0.5;
}

function composeTask(
  corpus: Corpus,
  source: CorpusFunction,
  { edits, seed }: { edits: readonly ChosenEdit[]; seed: number },
): Task {
  const splicedLines = (side: 'before' | 'after' | 'repaired'): string[] => {
    const parts: { start: number; end: number; text: string }[] = [];
    for (const edit of edits) {
      const isBefore = side === 'before' || (side === 'repaired' && edit.role === 'bug');
      const text = isBefore ? edit.before : edit.after;
      for (let index = 0; index < edit.site.spans.length; index += 2)
        parts.push({ start: edit.site.spans[index] ?? 0, end: edit.site.spans[index + 1] ?? 0, text });
    }
    parts.sort((a, b) => a.start - b.start);
    let result = '';
    let from = 0;
    for (const part of parts) {
      result += source.text.slice(from, part.start) + part.text;
      from = part.end;
    }
    return (result + source.text.slice(from)).split('\n');
  };
  const before = splicedLines('before');
  const after = splicedLines('after');
  const repaired = splicedLines('repaired');
  const changes: ChangedLine[] = [];
  const labels: Edit[] = [];
  const bugs: Bug[] = [];
  const byLine = new Map<number, ChosenEdit>();
  for (const edit of edits) for (const line of edit.site.lines) byLine.set(line, edit);
  for (const [line, edit] of [...byLine].toSorted((a, b) => a[0] - b[0])) {
    const number = source.startLine + line;
    changes.push({ line: number, before: before[line] ?? '', after: after[line] ?? '' });
    labels.push({ line: number, kind: edit.site.kind, role: edit.role });
    if (edit.role !== 'bug') continue;
    bugs.push(
      describeBug({
        // Only sites of a bug kind have a wrong text, and only those become bugs.
        category: edit.site.kind as BugCategory,
        file: source.file,
        lines: after,
        startLine: source.startLine,
        at: line,
        rightLine: repaired[line] ?? '',
        right: edit.before,
        wrong: edit.after,
        ...(edit.site.evidence === undefined ? {} : { evidence: edit.site.evidence }),
      }),
    );
  }
  const environment = {
    package: source.package,
    version: source.version,
    file: source.file,
    functionName: source.name,
    startLine: source.startLine,
    lines: after,
    changes,
  };
  const hash = createHash('sha256').update(JSON.stringify(environment)).digest('hex');
  return {
    id: taskId(hash.slice(0, 16)),
    kind: 'check',
    environment,
    gold: { bugs },
    metadata: { split: corpus.split, seed, edits: labels },
  };
}
