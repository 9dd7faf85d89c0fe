/**
 * Model folders in the Hugging Face layout: config, tokenizer, chat template and weights (one file or shards with an index).
 * Reads and writes them whole; what the config means belongs to the model. Invariant: every tensor that is returned was named by
 * exactly one file, and a folder that was not written to the end has no config.json.
 */
import { mkdir, readFile, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { bfloat16ToFloat32, float16ToFloat32 } from './dtype.ts';
import { errnoCode, writeFileDurably } from './durable-file.ts';
import { readSafetensors, writeSafetensors, type TensorData } from './safetensors.ts';

export interface ModelFolder {
  /** config.json as parsed. */
  readonly config: unknown;
  readonly generationConfig?: unknown;
  /** tokenizer.json as parsed. */
  readonly tokenizerJson: unknown;
  readonly tokenizerConfig: unknown;
  /** Jinja source: chat_template.jinja, else the (default) template of tokenizer_config.json. */
  readonly chatTemplate?: string;
  readonly tensors: Map<string, TensorData>;
}

export interface WriteModelFolderOptions extends Omit<ModelFolder, 'tensors'> {
  readonly tensors: ReadonlyMap<string, TensorData>;
  /** Larger models are split over several files. */
  readonly maxShardBytes?: number;
}

const SINGLE_FILE = 'model.safetensors';
const INDEX_FILE = 'model.safetensors.index.json';
/** Other readers refuse weights whose file does not say which framework's conventions it follows. */
const FILE_METADATA = { format: 'pt' };

export async function readModelFolder(path: string): Promise<ModelFolder> {
  const config = await readRequiredJson(path, 'config.json');
  const tokenizerJson = await readRequiredJson(path, 'tokenizer.json');
  const tokenizerConfig = await readRequiredJson(path, 'tokenizer_config.json');
  const generationConfig = await readJson(path, 'generation_config.json');
  const chatTemplate = (await readText(path, 'chat_template.jinja')) ?? templateOf(tokenizerConfig);
  const tensors = await readTensors(path);
  return {
    config,
    tokenizerJson,
    tokenizerConfig,
    ...(generationConfig === undefined ? {} : { generationConfig }),
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
    tensors,
  };
}

/** Weights first and config.json last, each file whole or absent. An existing folder keeps its other files. */
export async function writeModelFolder(path: string, folder: WriteModelFolderOptions): Promise<void> {
  await mkdir(path, { recursive: true });
  await rm(join(path, 'config.json'), { force: true });
  const shards = planShards(folder.tensors, folder.maxShardBytes ?? 5_000_000_000);
  const [first] = shards;
  if (shards.length === 1 && first !== undefined) {
    await rm(join(path, INDEX_FILE), { force: true });
    await writeSafetensors(join(path, SINGLE_FILE), first, FILE_METADATA);
  } else {
    await rm(join(path, SINGLE_FILE), { force: true });
    const weightMap: Record<string, string> = {};
    let totalBytes = 0;
    for (const [index, shard] of shards.entries()) {
      const file = `model-${String(index + 1).padStart(5, '0')}-of-${String(shards.length).padStart(5, '0')}.safetensors`;
      await writeSafetensors(join(path, file), shard, FILE_METADATA);
      for (const [name, tensor] of shard) {
        weightMap[name] = file;
        totalBytes += tensor.bytes.byteLength;
      }
    }
    await writeJson(path, INDEX_FILE, { metadata: { total_size: totalBytes }, weight_map: weightMap });
  }
  await writeJson(path, 'tokenizer.json', folder.tokenizerJson);
  await writeJson(path, 'tokenizer_config.json', folder.tokenizerConfig);
  if (folder.generationConfig !== undefined) await writeJson(path, 'generation_config.json', folder.generationConfig);
  if (folder.chatTemplate !== undefined)
    await writeFileDurably(join(path, 'chat_template.jinja'), [Buffer.from(folder.chatTemplate)], { mode: 'replace' });
  await writeJson(path, 'config.json', folder.config);
}

/**
 * Throws `invalid-model` with every missing, unexpected and wrong-shaped tensor in one message. Left-overs that some exporters
 * write and nothing reads are let through: rotary frequencies, causal-mask buffers, and a head equal to the tied embedding.
 */
export function checkTensors(
  tensors: ReadonlyMap<string, TensorData>,
  expected: ReadonlyMap<string, readonly number[]>,
): void {
  const problems: string[] = [];
  for (const [name, shape] of expected) {
    const tensor = tensors.get(name);
    if (tensor === undefined) problems.push(`${name} is missing`);
    else if (tensor.shape.length !== shape.length || tensor.shape.some((extent, axis) => extent !== shape[axis]))
      problems.push(`${name} has shape [${tensor.shape.join(', ')}], expected [${shape.join(', ')}]`);
  }
  for (const [name, tensor] of tensors)
    if (!expected.has(name) && !isHarmless(name, tensor, tensors)) problems.push(`${name} is unexpected`);
  if (problems.length === 0) return;
  throw new HoneError('invalid-model', `The model's tensors do not fit its config.json: ${problems.join('; ')}.`, {
    cure: 'Use the weights and the config.json of the same model, or download the folder again.',
  });
}

/** BF16, F16 and F32 tensors as float32, exactly; always a copy. Other types are `invalid-model`. */
export function tensorToFloat32(tensor: TensorData): Float32Array {
  const copy = new Uint8Array(tensor.bytes); // Not slice(): a Buffer would give a view, perhaps an unaligned one.
  switch (tensor.dtype) {
    case 'F32':
      return new Float32Array(copy.buffer, copy.byteOffset, copy.byteLength / 4);
    case 'BF16':
      return bfloat16ToFloat32(new Uint16Array(copy.buffer, copy.byteOffset, copy.byteLength / 2));
    case 'F16':
      return float16ToFloat32(new Uint16Array(copy.buffer, copy.byteOffset, copy.byteLength / 2));
    default:
      throw new HoneError('invalid-model', `A weight tensor of type ${tensor.dtype} cannot be read as float32.`, {
        cure: 'Use weights in BF16, F16 or F32; quantised checkpoints must be dequantised first.',
      });
  }
}

function isHarmless(name: string, tensor: TensorData, tensors: ReadonlyMap<string, TensorData>): boolean {
  if (/(^|\.)rotary_emb\.inv_freq$|\.(attn|attention|self_attn)\.(masked_)?bias$/.test(name)) return true;
  const embedding = tensors.get('model.embed_tokens.weight');
  return (
    name === 'lm_head.weight' &&
    embedding?.dtype === tensor.dtype &&
    Buffer.compare(embedding.bytes, tensor.bytes) === 0
  );
}

/** One file wins over an index beside it, as in the readers that everybody uses. */
async function readTensors(path: string): Promise<Map<string, TensorData>> {
  try {
    return (await readSafetensors(join(path, SINGLE_FILE))).tensors;
  } catch (error) {
    if (!isMissingFile(error)) throw error;
  }
  const indexed = await readJson(path, INDEX_FILE);
  if (indexed === undefined) throw missingFile(path, `${SINGLE_FILE} or ${INDEX_FILE}`);
  const weightMap = parseWeightMap(indexed, join(path, INDEX_FILE));
  const tensors = new Map<string, TensorData>();
  for (const file of new Set(weightMap.values())) {
    let shard: Map<string, TensorData>;
    try {
      shard = (await readSafetensors(join(path, file))).tensors;
    } catch (error) {
      if (isMissingFile(error)) throw missingFile(path, `${file}, which ${INDEX_FILE} names`);
      throw error;
    }
    for (const [name, tensor] of shard) {
      const home = weightMap.get(name);
      if (home !== file)
        throw new HoneError(
          'invalid-model',
          `${join(path, file)} holds tensor ${name}, which ${INDEX_FILE} places in ${home ?? 'no file'}.`,
          {
            cure: 'The index and the shards are from different exports; download the folder again.',
          },
        );
      tensors.set(name, tensor);
    }
  }
  const lost = [...weightMap.keys()].filter((name) => !tensors.has(name));
  if (lost.length > 0)
    throw new HoneError(
      'invalid-model',
      `${join(path, INDEX_FILE)} names tensors that its files do not hold: ${lost.join(', ')}.`,
      {
        cure: 'The index and the shards are from different exports; download the folder again.',
      },
    );
  return tensors;
}

function parseWeightMap(index: unknown, source: string): Map<string, string> {
  const weightMap = typeof index === 'object' && index !== null && 'weight_map' in index ? index.weight_map : undefined;
  if (typeof weightMap !== 'object' || weightMap === null)
    throw new HoneError('invalid-model', `${source} has no weight_map.`, { cure: 'Download the index file again.' });
  const files = new Map<string, string>();
  for (const [name, file] of Object.entries(weightMap)) {
    if (typeof file !== 'string' || basename(file) !== file || !file.endsWith('.safetensors'))
      throw new HoneError(
        'invalid-model',
        `${source} places tensor ${name} in ${JSON.stringify(file)}, not a safetensors file of the same folder.`,
        {
          cure: 'Download the index file again.',
        },
      );
    files.set(name, file);
  }
  return files;
}

/** Fills files in the order of the map; a tensor is never split. An empty model is one empty file. */
function planShards(tensors: ReadonlyMap<string, TensorData>, maxShardBytes: number): Map<string, TensorData>[] {
  const shards = [new Map<string, TensorData>()];
  let sizeBytes = 0;
  for (const [name, tensor] of tensors) {
    if (sizeBytes > 0 && sizeBytes + tensor.bytes.byteLength > maxShardBytes) {
      shards.push(new Map());
      sizeBytes = 0;
    }
    shards.at(-1)?.set(name, tensor);
    sizeBytes += tensor.bytes.byteLength;
  }
  return shards;
}

/** tokenizer_config.json holds one template, or a list of named ones. */
function templateOf(tokenizerConfig: unknown): string | undefined {
  if (typeof tokenizerConfig !== 'object' || tokenizerConfig === null || !('chat_template' in tokenizerConfig))
    return undefined;
  const { chat_template: template } = tokenizerConfig;
  if (typeof template === 'string') return template;
  if (!Array.isArray(template)) return undefined;
  for (const item of template as unknown[])
    // JSON.parse gives any; each item is checked below.
    if (
      typeof item === 'object' &&
      item !== null &&
      'name' in item &&
      item.name === 'default' &&
      'template' in item &&
      typeof item.template === 'string'
    )
      return item.template;
  return undefined;
}

async function readText(path: string, file: string): Promise<string | undefined> {
  try {
    return await readFile(join(path, file), 'utf8');
  } catch (error) {
    if (errnoCode(error) === 'ENOENT') return undefined;
    throw new HoneError('invalid-model', `Cannot read ${join(path, file)}: ${errnoCode(error) ?? String(error)}.`, {
      cure: 'A model is a folder with config.json, tokenizer.json, tokenizer_config.json and safetensors weights.',
      cause: error,
    });
  }
}

async function readJson(path: string, file: string): Promise<unknown> {
  const text = await readText(path, file);
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text) as unknown; // JSON.parse gives any.
  } catch (error) {
    throw new HoneError('invalid-model', `${join(path, file)} is not JSON: ${reasonOf(error)}.`, {
      cure: 'Download the file again.',
      cause: error,
    });
  }
}

async function readRequiredJson(path: string, file: string): Promise<unknown> {
  const value = await readJson(path, file);
  if (value === undefined) throw missingFile(path, file);
  return value;
}

async function writeJson(path: string, file: string, value: unknown): Promise<void> {
  await writeFileDurably(join(path, file), [Buffer.from(`${JSON.stringify(value, null, 2)}\n`)], { mode: 'replace' });
}

function isMissingFile(error: unknown): boolean {
  return error instanceof HoneError && errnoCode(error.cause) === 'ENOENT';
}

function missingFile(path: string, file: string): HoneError {
  return new HoneError('invalid-model', `The model folder ${path} has no ${file}.`, {
    cure: 'Point at a complete Hugging Face folder: config.json, tokenizer.json, tokenizer_config.json and model.safetensors (or shards with their index).',
  });
}
