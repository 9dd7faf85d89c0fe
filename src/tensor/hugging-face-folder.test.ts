import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { checkTensors } from './check-tensors.ts';
import {
  copyModelFiles,
  layOutModel,
  readModelFolder,
  readModelPlaces,
  tensorToFloat32,
  writeModelFolder,
  type WriteModelFolderOptions,
} from './hugging-face-folder.ts';
import { readSafetensors, writeSafetensors, type TensorData } from './safetensors.ts';

let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'hone-model-'));
});
afterEach(() => rm(directory, { recursive: true }));

const bf16 = (shape: readonly number[], fill: number): TensorData => ({
  dtype: 'BF16',
  shape,
  bytes: new Uint8Array(shape.reduce((product, extent) => product * extent, 2)).fill(fill),
});
const tensors = new Map([
  ['model.embed_tokens.weight', bf16([4, 2], 1)],
  ['model.layers.0.mlp.up_proj.weight', bf16([3, 2], 2)],
  ['model.norm.weight', bf16([2], 3)],
]);
const folder: WriteModelFolderOptions = {
  config: { model_type: 'qwen3', hidden_size: 2 },
  generationConfig: { eos_token_id: 1 },
  tokenizerJson: { model: { type: 'BPE' } },
  tokenizerConfig: { eos_token: '<end>' },
  chatTemplate: '{{ messages }}',
  tensors,
};

it('gives back the folder that it wrote', async () => {
  const path = join(directory, 'model');
  await writeModelFolder(path, folder);
  const read = await readModelFolder(path);
  expect(read).toEqual({ ...folder, tensors: read.tensors });
  expect(read.tensors).toEqual(tensors);
  expect((await readdir(path)).sort()).toEqual([
    'chat_template.jinja',
    'config.json',
    'generation_config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
  ]);
  expect((await readSafetensors(join(path, 'model.safetensors'))).metadata).toEqual({ format: 'pt' });
});

it('splits large models into shards with an index, and back into one file', async () => {
  await writeFile(join(directory, 'README.md'), 'card');
  await writeModelFolder(directory, { ...folder, maxShardBytes: 20 });
  expect((await readdir(directory)).filter((file) => file.includes('safetensors')).sort()).toEqual([
    'model-00001-of-00002.safetensors',
    'model-00002-of-00002.safetensors',
    'model.safetensors.index.json',
  ]);
  expect((await readModelFolder(directory)).tensors).toEqual(tensors);
  await writeModelFolder(directory, folder);
  expect((await readModelFolder(directory)).tensors).toEqual(tensors);
  expect(await readdir(directory)).toContain('README.md');
  expect(await readdir(directory)).not.toContain('model.safetensors.index.json');
});

it.each(['config.json', 'tokenizer.json', 'tokenizer_config.json', 'model.safetensors'])(
  'names a missing %s and the cure',
  async (file) => {
    await writeModelFolder(directory, folder);
    await rm(join(directory, file));
    await expect(readModelFolder(directory)).rejects.toMatchObject({
      code: 'invalid-model',
      message: expect.stringContaining(file),
      cure: expect.stringContaining('complete Hugging Face folder'),
    });
  },
);

it('names a shard that is missing, and an index that does not match its shards', async () => {
  await writeModelFolder(directory, { ...folder, maxShardBytes: 20 });
  const second = join(directory, 'model-00002-of-00002.safetensors');
  await writeSafetensors(second, new Map([['stray', bf16([1], 0)]]));
  await expect(readModelFolder(directory)).rejects.toMatchObject({
    code: 'invalid-model',
    message: expect.stringContaining('holds tensor stray, which model.safetensors.index.json places in no file'),
  });
  await writeSafetensors(second, new Map());
  await expect(readModelFolder(directory)).rejects.toMatchObject({
    message: expect.stringMatching(/do not hold: .*model\.norm\.weight/),
  });
  await rm(second);
  await expect(readModelFolder(directory)).rejects.toMatchObject({
    message: expect.stringContaining('model-00002-of-00002.safetensors'),
  });
  await writeFile(
    join(directory, 'model.safetensors.index.json'),
    JSON.stringify({ weight_map: { a: '../other.safetensors' } }),
  );
  await expect(readModelFolder(directory)).rejects.toMatchObject({
    code: 'invalid-model',
    message: expect.stringContaining('../other.safetensors'),
  });
});

it('finds the chat template in any of its three homes', async () => {
  const { chatTemplate: _, ...withoutTemplate } = folder;
  await writeModelFolder(directory, withoutTemplate);
  expect((await readModelFolder(directory)).chatTemplate).toBeUndefined();
  await writeModelFolder(directory, { ...withoutTemplate, tokenizerConfig: { chat_template: 'one' } });
  expect((await readModelFolder(directory)).chatTemplate).toBe('one');
  await writeModelFolder(directory, {
    ...withoutTemplate,
    tokenizerConfig: {
      chat_template: [
        { name: 'tool', template: 'x' },
        { name: 'default', template: 'two' },
      ],
    },
  });
  expect((await readModelFolder(directory)).chatTemplate).toBe('two');
  await writeModelFolder(directory, { ...folder, tokenizerConfig: { chat_template: 'one' } });
  expect((await readModelFolder(directory)).chatTemplate).toBe('{{ messages }}');
});

it('says in one sentence that a JSON file is broken', async () => {
  await writeModelFolder(directory, folder);
  await writeFile(join(directory, 'tokenizer.json'), '{"model":');
  await expect(readModelFolder(directory)).rejects.toMatchObject({
    code: 'invalid-model',
    message: expect.stringMatching(/tokenizer\.json is not JSON/),
  });
});

it('lists every tensor that does not fit, at once, and lets harmless left-overs pass', () => {
  const expected = new Map([...tensors].map(([name, tensor]) => [name, tensor.shape]));
  expect(() => checkTensors(tensors, expected)).not.toThrow();
  const embedding = bf16([4, 2], 1);
  const withLeftOvers = new Map([
    ...tensors,
    ['lm_head.weight', embedding],
    ['model.layers.0.self_attn.rotary_emb.inv_freq', bf16([1], 0)],
  ]);
  expect(() => checkTensors(withLeftOvers, expected)).not.toThrow();
  const broken = new Map([
    ...tensors,
    ['lm_head.weight', bf16([4, 2], 7)],
    ['model.norm.weight', bf16([3], 0)],
    ['extra', bf16([1], 0)],
  ]);
  broken.delete('model.embed_tokens.weight');
  expect(() => checkTensors(broken, expected)).toThrow(
    "The model's tensors do not fit its config.json: model.embed_tokens.weight is missing; model.norm.weight has shape [3], expected [2]; lm_head.weight is unexpected; extra is unexpected.",
  );
});

it('reads BF16, F16 and F32 from unaligned bytes as float32, and refuses others', () => {
  const unaligned = (...bytes: number[]): Uint8Array => Buffer.from([0, ...bytes]).subarray(1);
  expect([...tensorToFloat32({ dtype: 'BF16', shape: [2], bytes: unaligned(0x80, 0x3f, 0, 0xc0) })]).toEqual([1, -2]);
  expect([...tensorToFloat32({ dtype: 'F16', shape: [1], bytes: unaligned(0, 0x3c) })]).toEqual([1]);
  expect([...tensorToFloat32({ dtype: 'F32', shape: [1], bytes: unaligned(0, 0, 0x80, 0x3f) })]).toEqual([1]);
  expect(() => tensorToFloat32({ dtype: 'U8', shape: [1], bytes: unaligned(1) })).toThrow(/U8/);
});

it('says where each tensor lies, in one file or in shards', async () => {
  for (const maxShardBytes of [20, 1000]) {
    await writeModelFolder(directory, { ...folder, maxShardBytes });
    const places = await readModelPlaces(directory);
    expect([...places.keys()].sort()).toEqual([...tensors.keys()].sort());
    for (const [name, { dtype, shape, place }] of places) {
      const bytes = (await readFile(place.path)).subarray(place.offset, place.offset + place.sizeBytes);
      expect({ dtype, shape, bytes: new Uint8Array(bytes) }).toEqual(tensors.get(name));
    }
  }
});

it('lays out the files of a model as it writes them', async () => {
  for (const maxShardBytes of [20, 1000]) {
    const path = join(directory, String(maxShardBytes));
    await writeModelFolder(path, { ...folder, maxShardBytes });
    const layout = layOutModel(tensors, { maxShardBytes });
    for (const { name, layout: shard } of layout.files) {
      const file = await readFile(join(path, name));
      expect(file.byteLength).toBe(shard.sizeBytes);
      expect(file.subarray(0, shard.head.byteLength)).toEqual(Buffer.from(shard.head));
    }
    if (layout.index === undefined) expect(layout.files.map(({ name }) => name)).toEqual(['model.safetensors']);
    else expect(await readFile(join(path, layout.index.name), 'utf8')).toBe(layout.index.text);
  }
});

it('copies what is not weights, byte for byte', async () => {
  const from = join(directory, 'from');
  const to = join(directory, 'to');
  await writeModelFolder(from, { ...folder, maxShardBytes: 20 });
  await writeFile(join(from, 'LICENSE'), 'free');
  await writeFile(join(from, 'pytorch_model.bin.index.json'), '{}');
  await mkdir(join(from, 'onnx'));
  await copyModelFiles(from, to);
  expect((await readdir(to)).sort()).toEqual([
    'LICENSE',
    'chat_template.jinja',
    'config.json',
    'generation_config.json',
    'tokenizer.json',
    'tokenizer_config.json',
  ]);
  for (const name of await readdir(to))
    expect(await readFile(join(to, name))).toEqual(await readFile(join(from, name)));
  await rm(join(from, 'config.json'));
  await expect(copyModelFiles(from, to)).rejects.toMatchObject({
    code: 'invalid-model',
    message: expect.stringContaining('has no config.json'),
  });
});
