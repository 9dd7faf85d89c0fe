/**
 * Model folders in the Hugging Face layout: config, tokenizer, chat template and weights (one file or shards with an index).
 * Reads and writes them whole, or says where in its files each tensor lies, for weights that are too large to hold or change in
 * place; what the config means belongs to the model. Invariant: every tensor that is returned was named by
 * exactly one file, and a folder that was not written to the end has no config.json.
 */
import { copyFile, mkdir, open, readdir, readFile, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { bfloat16ToFloat32, float16ToFloat32, tensorSizeBytes, type Dtype } from './dtype.ts';
import { syncDirectory, writeFileDurably } from './durable-file.ts';
import { errnoCode } from './errno-code.ts';
import {
  layOutSafetensors,
  readSafetensors,
  readSafetensorsHeader,
  writeSafetensors,
  type SafetensorsLayout,
  type TensorData,
} from './safetensors.ts';

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
const DEFAULT_SHARD_BYTES = 5_000_000_000;

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
  const shards = planShards(
    folder.tensors,
    ({ bytes }) => bytes.byteLength,
    folder.maxShardBytes ?? DEFAULT_SHARD_BYTES,
  );
  const [first] = shards;
  if (shards.length === 1 && first !== undefined) {
    await rm(join(path, INDEX_FILE), { force: true });
    await writeSafetensors(join(path, SINGLE_FILE), first, FILE_METADATA);
  } else {
    await rm(join(path, SINGLE_FILE), { force: true });
    const weightMap: Record<string, string> = {};
    let totalBytes = 0;
    for (const [index, shard] of shards.entries()) {
      const file = shardName(index, shards.length);
      await writeSafetensors(join(path, file), shard, FILE_METADATA);
      for (const [name, tensor] of shard) {
        weightMap[name] = file;
        totalBytes += tensor.bytes.byteLength;
      }
    }
    await writeFileDurably(join(path, INDEX_FILE), [Buffer.from(indexText(weightMap, totalBytes))], {
      mode: 'replace',
    });
  }
  await writeJson(path, 'tokenizer.json', folder.tokenizerJson);
  await writeJson(path, 'tokenizer_config.json', folder.tokenizerConfig);
  if (folder.generationConfig !== undefined) await writeJson(path, 'generation_config.json', folder.generationConfig);
  if (folder.chatTemplate !== undefined)
    await writeFileDurably(join(path, 'chat_template.jinja'), [Buffer.from(folder.chatTemplate)], { mode: 'replace' });
  await writeJson(path, 'config.json', folder.config);
}

/** A tensor of a folder, where it lies. */
export interface PlacedTensor {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly place: {
    readonly kind: 'file';
    readonly path: string;
    readonly offset: number;
    readonly sizeBytes: number;
  };
}

/** Every tensor of the folder, found from the headers of its files; no weights are read. */
export function readModelPlaces(path: string): Promise<Map<string, PlacedTensor>> {
  return readWeightFiles(path, async (file) => {
    const { tensors } = await readSafetensorsHeader(file);
    return new Map(
      [...tensors].map(([name, { dtype, shape, offset, sizeBytes }]) => [
        name,
        { dtype, shape, place: { kind: 'file', path: file, offset, sizeBytes } },
      ]),
    );
  });
}

export interface ModelLayout {
  readonly files: readonly { readonly name: string; readonly layout: SafetensorsLayout }[];
  /** Name and text of the index that several files need; undefined for one file. */
  readonly index: { readonly name: string; readonly text: string } | undefined;
}

/** How the weights of a folder are spread over files of at most `maxShardBytes` (a larger tensor has one of its own). */
export function layOutModel(
  tensors: ReadonlyMap<string, { readonly dtype: Dtype; readonly shape: readonly number[] }>,
  { maxShardBytes = DEFAULT_SHARD_BYTES }: { maxShardBytes?: number } = {},
): ModelLayout {
  const shards = planShards(
    tensors,
    ({ dtype, shape }) => tensorSizeBytes(dtype, shape) ?? Number.MAX_SAFE_INTEGER,
    maxShardBytes,
  );
  const files = shards.map((shard, index) => {
    const name = shardName(index, shards.length);
    return { name, layout: layOutSafetensors(shard, FILE_METADATA, name) };
  });
  if (files.length === 1) return { files, index: undefined };
  const weightMap: Record<string, string> = {};
  let totalBytes = 0;
  for (const { name: file, layout } of files)
    for (const [name, { sizeBytes }] of layout.tensors) {
      weightMap[name] = file;
      totalBytes += sizeBytes;
    }
  return { files, index: { name: INDEX_FILE, text: indexText(weightMap, totalBytes) } };
}

/** Copies what is not weights (config, tokenizer, template, licence) byte for byte, config.json last; sub-folders stay behind. */
export async function copyModelFiles(from: string, to: string): Promise<void> {
  const names: string[] = [];
  try {
    for (const entry of await readdir(from, { withFileTypes: true }))
      if (!entry.isDirectory() && !entry.name.startsWith('.') && !isWeightFile(entry.name)) names.push(entry.name);
    if (!names.includes('config.json')) throw missingFile(from, 'config.json');
    await mkdir(to, { recursive: true });
    for (const name of names.sort((left, right) => Number(left === 'config.json') - Number(right === 'config.json'))) {
      await copyFile(join(from, name), join(to, name));
      const handle = await open(join(to, name), 'r');
      try {
        await handle.sync();
      } finally {
        await handle.close();
      }
    }
    await syncDirectory(to);
  } catch (error) {
    if (error instanceof HoneError) throw error;
    throw new HoneError('store-failed', `Could not copy the files of model ${from} to ${to}: ${reasonOf(error)}.`, {
      cure: 'Check that the model folder can be read and that the other is writable, on a disk with room.',
      cause: error,
    });
  }
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

function readTensors(path: string): Promise<Map<string, TensorData>> {
  return readWeightFiles(path, async (file) => (await readSafetensors(file)).tensors);
}

/** One file wins over an index beside it, as in the readers that everybody uses. */
async function readWeightFiles<T>(
  path: string,
  readFileTensors: (file: string) => Promise<Map<string, T>>,
): Promise<Map<string, T>> {
  try {
    return await readFileTensors(join(path, SINGLE_FILE));
  } catch (error) {
    if (!isMissingFile(error)) throw error;
  }
  const indexed = await readJson(path, INDEX_FILE);
  if (indexed === undefined) throw missingFile(path, `${SINGLE_FILE} or ${INDEX_FILE}`);
  const weightMap = parseWeightMap(indexed, join(path, INDEX_FILE));
  const tensors = new Map<string, T>();
  for (const file of new Set(weightMap.values())) {
    let shard: Map<string, T>;
    try {
      shard = await readFileTensors(join(path, file));
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
function planShards<T>(
  tensors: ReadonlyMap<string, T>,
  sizeOf: (tensor: T) => number,
  maxShardBytes: number,
): Map<string, T>[] {
  const shards = [new Map<string, T>()];
  let sizeBytes = 0;
  for (const [name, tensor] of tensors) {
    if (sizeBytes > 0 && sizeBytes + sizeOf(tensor) > maxShardBytes) {
      shards.push(new Map());
      sizeBytes = 0;
    }
    shards.at(-1)?.set(name, tensor);
    sizeBytes += sizeOf(tensor);
  }
  return shards;
}

function shardName(index: number, shards: number): string {
  if (shards === 1) return SINGLE_FILE;
  return `model-${String(index + 1).padStart(5, '0')}-of-${String(shards).padStart(5, '0')}.safetensors`;
}

function indexText(weightMap: Readonly<Record<string, string>>, totalBytes: number): string {
  return `${JSON.stringify({ metadata: { total_size: totalBytes }, weight_map: weightMap }, null, 2)}\n`;
}

/** Weights in any form that exporters leave in such folders. */
function isWeightFile(name: string): boolean {
  return (
    /\.(safetensors|bin|pt|pth|gguf|h5|msgpack|onnx)$/.test(name) || /\.(safetensors|bin)\.index\.json$/.test(name)
  );
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
