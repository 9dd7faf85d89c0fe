/**
 * Bad input to `hone train`: one sentence with the value and the cure on standard error, a non-zero exit, and nothing
 * written, neither a run folder nor standard output.
 */
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { spawnSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { runHone, writeConfig } from './hone-process.fixture.ts';
import { writeTinyModel } from './tiny-model.fixture.ts';
import { readSafetensors, writeSafetensors } from '../src/tensor/safetensors.ts';

const repository = fileURLToPath(new URL('..', import.meta.url));

let directory = '';
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'hone-bad-input-'));
  await writeTinyModel(join(directory, 'model'));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function expectRefusal(args: readonly string[], message: RegExp | string): Promise<void> {
  const { code, stdout, stderr } = await runHone(args, { cwd: directory });
  const lines = stderr.trim().split('\n');
  if (typeof message === 'string') expect(lines.at(-1)).toBe(message);
  else expect(lines.at(-1)).toMatch(message);
  // What stands before it is progress; there is no stack.
  expect(stderr).not.toMatch(/^\s+at /mu);
  expect(code).toBe(1);
  expect(stdout).toBe('');
  expect(existsSync(join(directory, 'runs'))).toBe(false);
}

describe.concurrent('a config', () => {
  it.each([
    {
      what: 'a mistyped key',
      config: { algorithm: { lerningRate: 1 } },
      message:
        /^hone: \S+ has 1 problem: algorithm\.lerningRate is not a known option \(did you mean learningRate\?\)\. Mend these keys; `hone config` lists every option with its unit and default\.$/u,
    },
    { what: 'an unknown section', config: { telemetry: {} }, message: /telemetry is not a known option\. Mend/u },
    {
      what: 'several problems at once',
      config: { seed: -1, engine: { thread: 2 }, sampling: { topP: 2 } },
      message:
        /has 3 problems: seed .*; sampling\.topP .*; engine\.thread is not a known option \(did you mean threads\?\)/u,
    },
    {
      what: 'a truncated sampler without replay',
      config: { replay: { keptSets: false } },
      message:
        /replay\.keptSets is false while sampling is truncated \(topP 0\.98, .*Set replay\.keptSets to true, or replay\.acknowledgeMismatch to true/u,
    },
    {
      what: 'staleness 0 with async',
      config: { schedule: { maxStaleness: 0 } },
      message: /schedule\.maxStaleness is 0 while schedule\.mode is async: .* use schedule\.mode sync/u,
    },
    {
      what: 'staleness in sync',
      config: { schedule: { mode: 'sync', maxStaleness: 2 } },
      message: /schedule\.maxStaleness is 2 while schedule\.mode is sync.* use schedule\.mode async/u,
    },
    {
      what: 'fewer slots than rollouts',
      config: { schedule: { concurrency: 8 }, engine: { slots: 4 } },
      message: /engine\.slots is 4, fewer than schedule\.concurrency 8: .* Raise slots or lower concurrency/u,
    },
    {
      what: 'the report strategy without instructions',
      config: { harness: { strategy: 'report' } },
      message: /harness\.instructions is none, .* Set it to full/u,
    },
  ])('with $what', async ({ what, config, message }) => {
    const path = join(directory, `${what.replaceAll(' ', '-')}.json`);
    writeFileSync(path, JSON.stringify({ name: 'bad', model: 'model', ...config }));
    await expectRefusal(['train', path], message);
  });

  it('that does not exist, is not JSON, or exports nothing', async () => {
    await expectRefusal(['train', 'none.json'], /^hone: There is no config file none\.json\. Name one that exists/u);
    writeFileSync(join(directory, 'broken.json'), '{"name": ');
    await expectRefusal(
      ['train', 'broken.json'],
      /^hone: broken\.json could not be read: .*JSON.* Name a config file/u,
    );
    writeFileSync(join(directory, 'empty.config.ts'), 'export const config = {};\n');
    await expectRefusal(
      ['train', 'empty.config.ts'],
      'hone: empty.config.ts does not export a config object. End it with: export default defineRun({ ... }).',
    );
  });

  it('overridden by an option that is no number, or of a run that does not exist', async () => {
    const config = writeConfig(directory, 'model');
    await expectRefusal(
      ['train', config, '--steps', 'many'],
      'hone: --steps is many, not a whole number from 1 up. Give a number such as --steps 1.',
    );
    await expectRefusal(
      ['train', config, '--resume'],
      'hone: runs/tiny holds no run to resume. Start it without --resume, or name the right folder.',
    );
  });
});

describe.concurrent('a model folder', () => {
  const edit =
    (file: string, change: (json: Record<string, unknown>) => void) =>
    (folder: string): void => {
      // Written by the fixture: an object.
      const json = JSON.parse(readFileSync(join(folder, file), 'utf8')) as Record<string, unknown>;
      change(json);
      writeFileSync(join(folder, file), JSON.stringify(json));
    };
  const cases: readonly { what: string; spoil: (folder: string) => void | Promise<void>; message: RegExp }[] = [
    {
      what: 'without a tensor',
      spoil: async (folder) => {
        const path = join(folder, 'model.safetensors');
        const { tensors } = await readSafetensors(path);
        tensors.delete('model.layers.1.mlp.up_proj.weight');
        await writeSafetensors(path, tensors, { format: 'pt' });
      },
      message:
        /^hone: The model's tensors do not fit its config\.json: model\.layers\.1\.mlp\.up_proj\.weight is missing\. Use the weights and the config\.json of the same model, or download/u,
    },
    {
      what: 'with a wrong shape',
      spoil: edit('config.json', (json) => (json['intermediate_size'] = 40)),
      message: /model\.layers\.0\.mlp\.gate_proj\.weight has shape \[32, 32\], expected \[40, 32\].* Use the weights/u,
    },
    {
      what: 'of an unsupported architecture',
      spoil: edit('config.json', (json) => (json['model_type'] = 'mixtral')),
      message:
        /^hone: config\.json has model_type = "mixtral"; expected .*qwen3.* Use a dense Qwen3, Qwen2 or Llama model/u,
    },
    {
      what: 'with truncated weights',
      spoil: (folder) => truncateSync(join(folder, 'model.safetensors'), 40_000),
      message:
        /^hone: \S+model\.safetensors is not a valid safetensors file: .* Download or write the file again; it is truncated/u,
    },
    {
      what: 'whose tokenizer lacks the tokens that its template writes',
      spoil: edit(
        'tokenizer.json',
        (json) =>
          (json['added_tokens'] = (json['added_tokens'] as { content: string }[]).filter(
            ({ content }) => content !== '<|assistant|>',
          )),
      ),
      message:
        /^hone: The tokenizer of \S+ does not have <\|assistant\|> as one token, and the chat template writes it\. Copy tokenizer\.json from the same model/u,
    },
    {
      what: 'whose tokenizer names no end of a turn',
      spoil: edit('tokenizer_config.json', (json) => delete json['eos_token']),
      message:
        /^hone: The tokenizer lacks the special tokens eos_token, .* name eos_token in tokenizer_config\.json\.$/u,
    },
    {
      what: 'without a chat template',
      spoil: (folder) => {
        rmSync(join(folder, 'chat_template.jinja'));
        edit('tokenizer_config.json', (json) => delete json['chat_template'])(folder);
      },
      message: /has no chat template\. Add chat_template\.jinja/u,
    },
    {
      what: 'without its tokenizer',
      spoil: (folder) => rmSync(join(folder, 'tokenizer.json')),
      message: /has no tokenizer\.json\. Point at a complete Hugging Face folder/u,
    },
    {
      what: 'with a context too small for a task',
      spoil: edit('config.json', (json) => (json['max_position_embeddings'] = 128)),
      message:
        /^hone: Task [0-9a-f]{16} \(\S+\) needs about \d+ tokens, the model's context is 128\. Lower tasks\.maxCharacters \(for hone eval: --max-characters\), or use a model with a longer context\.$/u,
    },
  ];
  it.each(cases)('$what', async ({ what, spoil, message }) => {
    const name = what.replaceAll(' ', '-');
    cpSync(join(directory, 'model'), join(directory, name), { recursive: true });
    await spoil(join(directory, name));
    await expectRefusal(['train', writeConfig(directory, name, { name })], message);
  });

  it('whose template cannot render the tools of the report strategy', async () => {
    const config = writeConfig(directory, 'model', {
      name: 'no-tools',
      harness: { strategy: 'report', instructions: 'full' },
    });
    await expectRefusal(
      ['train', config],
      'hone: harness.strategy is report, and the chat template of the model does not render tools. Use harness.strategy sweep, or a model whose chat template knows tools.',
    );
  });

  it('that is not there', async () => {
    await expectRefusal(
      ['train', writeConfig(directory, 'nowhere', { name: 'nowhere' })],
      /^hone: The model folder nowhere has no config\.json\. Point at a complete Hugging Face folder/u,
    );
  });
});

it('a checkout without its corpus', () => {
  const checkout = join(directory, 'checkout');
  for (const folder of ['bin', 'src']) cpSync(join(repository, folder), join(checkout, folder), { recursive: true });
  cpSync(join(repository, 'package.json'), join(checkout, 'package.json'));
  symlinkSync(join(repository, 'node_modules'), join(checkout, 'node_modules'));
  const run = (): string => {
    const { stderr, status } = spawnSync(
      process.execPath,
      [join(checkout, 'bin', 'hone.js'), 'train', writeConfig(directory, 'model')],
      { cwd: directory, encoding: 'utf8' },
    );
    expect(status).toBe(1);
    return stderr.trim().split('\n').at(-1) ?? '';
  };
  expect(run()).toBe(
    `hone: There is no corpus workspace at ${join(checkout, 'corpus')}. Run \`npm ci\` in the root of the repository: it installs the corpus workspace.`,
  );
  mkdirSync(join(checkout, 'corpus'));
  writeFileSync(
    join(checkout, 'corpus', 'package.json'),
    '{ "dependencies": { "a-package-that-nobody-installed": "1.0.0" } }',
  );
  expect(run()).toMatch(
    /^hone: 1 of the 1 corpus packages are not installed \(first: a-package-that-nobody-installed\)\. Run `npm ci`/u,
  );
  expect(existsSync(join(directory, 'runs'))).toBe(false);
});
