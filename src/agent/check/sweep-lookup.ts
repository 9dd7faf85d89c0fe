/**
 * What a look-up on a changed line answers. The harness and pre-training both ask here, so a model is trained on the
 * very text that it will read.
 */
import { receiverOnLine } from '../../code/line-names.ts';
import { lookupText } from '../../code/lookup-text.ts';
import type { PackageIndex } from '../../code/package-index.ts';
import type { ChangedLine } from '../../domain/task.ts';

export function lookUpOnLine(
  index: Pick<PackageIndex, 'lookUp'>,
  place: { readonly file: string; readonly change: ChangedLine; readonly name: string },
): { readonly text: string; readonly found: boolean } {
  const { file, change, name } = place;
  const receiver = receiverOnLine(change.after, name);
  const declaration = index.lookUp(name, { file, line: change.line, ...(receiver === undefined ? {} : { receiver }) });
  return { text: lookupText(name, declaration, change.after), found: declaration !== undefined };
}
