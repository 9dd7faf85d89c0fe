/**
 * Builds what is published into `dist/`: JavaScript and declarations by tsc, then what tsc leaves undone: the files
 * that modules load by URL. Invariant: every `new URL('./x', import.meta.url)` in `dist/` names a file that is there.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Lang, parse } from '@ast-grep/napi';

const root = fileURLToPath(new URL('..', import.meta.url));
const source = join(root, 'src');
const target = join(root, 'dist');

/** Kinds of files that a module under `src/` may read at run time. */
const DATA_ENDINGS = new Set(['.wasm', '.json', '.jinja', '.html', '.css', '.js', '.md']);

/** Turns `.ts` into `.js` in URLs of workers and the like; tsc rewrites import specifiers only. */
function rewriteModuleUrls(file: string): void {
  const text = readFileSync(file, 'utf8');
  const tree = parse(Lang.JavaScript, text).root();
  const edits = tree
    .findAll({
      rule: {
        kind: 'string',
        regex: '^.\\.{1,2}/',
        inside: { kind: 'arguments', has: { pattern: 'import.meta.url' }, inside: { kind: 'new_expression' } },
      },
    })
    .flatMap((specifier) => {
      const built = specifier.text().slice(1, -1).replace(/\.ts$/, '.js');
      if (!existsSync(join(dirname(file), built))) {
        throw new Error(
          `${file} refers to ${built}, which is not in the package: add its ending to DATA_ENDINGS or its folder to "files".`,
        );
      }
      return [specifier.replace(`'${built}'`)];
    });
  if (edits.length > 0) writeFileSync(file, tree.commitEdits(edits));
}

rmSync(target, { recursive: true, force: true });
const compiled = spawnSync('tsc', ['-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
if (compiled.status !== 0) process.exit(compiled.status ?? 1);
cpSync(source, target, {
  recursive: true,
  filter: (path) => extname(path) === '' || DATA_ENDINGS.has(extname(path)),
});
for (const entry of readdirSync(target, { recursive: true, withFileTypes: true })) {
  if (entry.name.endsWith('.js')) rewriteModuleUrls(join(entry.parentPath, entry.name));
}
