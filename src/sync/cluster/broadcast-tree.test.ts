import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { depthOf, growTree, type BroadcastTree } from './broadcast-tree.ts';

const EMPTY: BroadcastTree = new Map();
const names = (count: number): string[] =>
  Array.from({ length: count }, (_, index) => `m${String(index).padStart(2, '0')}`);

function childrenOf(tree: BroadcastTree, parent: string | null): string[] {
  return [...tree].flatMap(([member, its]) => (its === parent ? [member] : []));
}

function expectSound(tree: BroadcastTree, members: readonly string[], fanOut: number): void {
  expect([...tree.keys()].toSorted()).toEqual([...members].toSorted());
  for (const member of members) expect(depthOf(tree, member), member).toBeLessThanOrEqual(members.length);
  for (const parent of [null, ...members]) expect(childrenOf(tree, parent).length).toBeLessThanOrEqual(fanOut);
}

/** Random joins and leaves, one list of members after the other. */
const histories = fc.record({
  fanOut: fc.integer({ min: 1, max: 4 }),
  rounds: fc.array(fc.uniqueArray(fc.constantFrom(...names(14)), { maxLength: 14 }), { minLength: 1, maxLength: 12 }),
});

describe('broadcast tree', () => {
  it('fills level by level under the fan-out', () => {
    const tree = growTree(EMPTY, names(6), { fanOut: 2 });
    expect(childrenOf(tree, null)).toEqual(['m00', 'm01']);
    expect(Math.max(...names(6).map((member) => depthOf(tree, member)))).toBe(2);
    expect(names(3).map((member) => depthOf(growTree(EMPTY, names(3), { fanOut: 1 }), member))).toEqual([1, 2, 3]);
  });

  it('has no cycle, keeps the degree and reaches all, whoever joins and leaves', () => {
    fc.assert(
      fc.property(histories, ({ fanOut, rounds }) => {
        let tree = EMPTY;
        for (const members of rounds) {
          tree = growTree(tree, members, { fanOut });
          expectSound(tree, members, fanOut);
        }
      }),
    );
  });

  it('does not depend on the order in which members are listed', () => {
    fc.assert(
      fc.property(histories, ({ fanOut, rounds }) => {
        let tree = EMPTY;
        for (const members of rounds) {
          const next = growTree(tree, members, { fanOut });
          const mirrored = growTree(new Map([...tree].toReversed()), members.toReversed(), { fanOut });
          expect(Object.fromEntries(mirrored)).toEqual(Object.fromEntries(next));
          tree = next;
        }
      }),
    );
  });

  it('moves nobody on a join, and only the children of the one that left', () => {
    fc.assert(
      fc.property(histories, ({ fanOut, rounds }) => {
        let tree = EMPTY;
        for (const members of rounds) {
          const next = growTree(tree, members, { fanOut });
          for (const [member, parent] of tree) {
            if (!next.has(member)) continue;
            if (parent === null || next.has(parent)) expect(next.get(member)).toBe(parent);
          }
          tree = next;
        }
      }),
    );
  });

  it('gives one child of a dead parent to the living grandparent', () => {
    const before = growTree(EMPTY, names(6), { fanOut: 2 });
    const [orphan = ''] = childrenOf(before, 'm00');
    const after = growTree(
      before,
      names(6).filter((member) => member !== 'm00'),
      { fanOut: 2 },
    );
    expect(after.get(orphan)).toBe(null);
  });

  it('gives a member that was failed another parent, never one of its own subtree, and in the end the controller', () => {
    const before = growTree(EMPTY, names(7), { fanOut: 2 });
    const [child = ''] = childrenOf(before, 'm00');
    const moved = growTree(before, names(7), {
      fanOut: 2,
      isAvoided: (member, parent) => member === child && parent === 'm00',
    });
    expect(moved.get(child)).not.toBe('m00');
    expectSound(moved, names(7), 2);
    const alone = growTree(before, names(7), {
      fanOut: 2,
      isAvoided: (member, parent) => member === child && parent !== null,
    });
    expect(alone.get(child)).toBe(null);
  });

  it('takes over the parents that members claim after a restart of the controller, where they fit', () => {
    const before = growTree(EMPTY, names(9), { fanOut: 3 });
    expect(Object.fromEntries(growTree(EMPTY, names(9), { fanOut: 3, claims: before }))).toEqual(
      Object.fromEntries(before),
    );
    const circle = new Map<string, string | null>([
      ['m00', 'm01'],
      ['m01', 'm00'],
    ]);
    expectSound(growTree(EMPTY, names(2), { fanOut: 2, claims: circle }), names(2), 2);
    expect(growTree(circle, names(2), { fanOut: 2 }).get('m01')).toBeDefined();
  });
});
