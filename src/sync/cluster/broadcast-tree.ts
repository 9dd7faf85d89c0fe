/**
 * Who receives from whom: a k-ary tree over the members of a cluster, the controller at its root. Pure: the tree before, the members
 * that live now and the edges to avoid go in, the next tree comes out. Invariants: every member reaches the root; no node has more
 * children than the fan-out (only the root may, when every other place is to be avoided); a member whose parent lives, has room
 * and is not to be avoided keeps it, so a join moves nobody and a leave moves only the children of the one that left.
 */

/** The parent of each member; null = the controller itself. */
export type BroadcastTree = ReadonlyMap<string, string | null>;

export interface TreeOptions {
  readonly fanOut: number;
  /** Members that should not receive from this parent any more: it failed them. */
  readonly isAvoided?: (member: string, parent: string | null) => boolean;
  /** Parents that members say they have: a controller that was started again takes them over where they fit. */
  readonly claims?: ReadonlyMap<string, string | null>;
}

/** The tree over exactly `members`. The same arguments, in any order of members, give the same tree. */
export function growTree(before: BroadcastTree, members: Iterable<string>, options: TreeOptions): BroadcastTree {
  const { fanOut, isAvoided = () => false, claims = new Map<string, string | null>() } = options;
  if (!Number.isSafeInteger(fanOut) || fanOut < 1) throw new RangeError(`A fan-out of ${fanOut} spans no tree.`);
  const living = [...new Set(members)].sort(byText);
  const isLiving = new Set(living);
  const wished = new Map<string, string | null>();
  for (const member of living) {
    const parent = before.has(member) ? before.get(member) : claims.get(member);
    if (parent === undefined || isAvoided(member, parent)) continue;
    if (parent === null || (isLiving.has(parent) && parent !== member)) wished.set(member, parent);
  }
  const tree = new Map<string, string | null>();
  const childCount = new Map<string | null, number>();
  const attach = (member: string, parent: string | null): void => {
    tree.set(member, parent);
    childCount.set(parent, (childCount.get(parent) ?? 0) + 1);
  };
  // Kept edges first: those of the tree before win a place over claims of members that are new.
  for (const isKept of [true, false])
    for (const [member, parent] of wished) {
      if (before.has(member) !== isKept || (childCount.get(parent) ?? 0) >= fanOut) continue;
      if (parent === null || !isBelow(tree, parent, member)) attach(member, parent);
    }
  for (const member of living) {
    if (tree.has(member)) continue;
    attach(member, findPlace(member, { before, tree, childCount, fanOut, isAvoided }));
  }
  return tree;
}

/** Whether `node` lies in the subtree of `ancestor`, or is it. A node that hangs nowhere yet ends the walk. */
function isBelow(tree: BroadcastTree, node: string, ancestor: string): boolean {
  for (let at: string | null | undefined = node; at !== null && at !== undefined; at = tree.get(at))
    if (at === ancestor) return true;
  return false;
}

/** Edges between a member and the controller; infinite for one that does not reach it. */
export function depthOf(tree: BroadcastTree, member: string): number {
  let depth = 0;
  for (let at: string | null = member; at !== null; depth++) {
    const parent: string | null | undefined = tree.get(at);
    if (parent === undefined || depth > tree.size) return Infinity;
    at = parent;
  }
  return depth;
}

interface Placing {
  readonly before: BroadcastTree;
  readonly tree: BroadcastTree;
  readonly childCount: ReadonlyMap<string | null, number>;
  readonly fanOut: number;
  readonly isAvoided: (member: string, parent: string | null) => boolean;
}

function findPlace(member: string, { before, tree, childCount, fanOut, isAvoided }: Placing): string | null {
  const fits = (parent: string | null): boolean =>
    (childCount.get(parent) ?? 0) < fanOut &&
    !isAvoided(member, parent) &&
    (parent === null || (depthOf(tree, parent) < Infinity && !isBelow(tree, parent, member)));
  // The nearest ancestor that lives has most of what the lost parent had.
  for (let at = before.get(member), steps = 0; at !== undefined && steps <= before.size; steps++) {
    if ((at === null || tree.has(at)) && fits(at)) return at;
    if (at === null) break;
    at = before.get(at);
  }
  if (fits(null)) return null;
  let best: { readonly id: string; readonly depth: number; readonly children: number } | undefined;
  for (const id of tree.keys()) {
    if (!fits(id)) continue;
    const candidate = { id, depth: depthOf(tree, id), children: childCount.get(id) ?? 0 };
    if (best === undefined || isBetter(candidate, best)) best = candidate;
  }
  return best?.id ?? null;
}

type Candidate = { readonly id: string; readonly depth: number; readonly children: number };

function isBetter(one: Candidate, other: Candidate): boolean {
  if (one.depth !== other.depth) return one.depth < other.depth;
  if (one.children !== other.children) return one.children < other.children;
  return byText(one.id, other.id) < 0;
}

function byText(one: string, other: string): number {
  if (one === other) return 0;
  return one < other ? -1 : 1;
}
