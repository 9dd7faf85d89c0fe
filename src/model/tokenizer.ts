/**
 * Text to token ids and back, for byte-level BPE read from a Hugging Face tokenizer.json.
 * Encoding is the library's; decoding is a table of bytes an id, so that decode(encode(text)) is exactly the text
 * that the tokenizer's own normalizer leaves, special tokens included. Other tokenizer families are refused at open.
 */
import { Tokenizer as LibraryTokenizer } from '@huggingface/tokenizers';

import { HoneError, reasonOf } from '../domain/errors.ts';

/** Turns a growing list of ids into text, holding back bytes that do not yet make a whole character. */
export interface StreamDecoder {
  /** The text that became complete with this id; may be empty. */
  push(id: number): string;
  /** What is left; an unfinished character comes out as U+FFFD. */
  flush(): string;
}

export interface Tokenizer {
  /** Special tokens in the text are recognised; none is added. */
  encode(text: string): Int32Array;
  /** Special tokens are kept. Ids without a token (padding rows of the vocabulary) come out as U+FFFD. */
  decode(ids: ArrayLike<number>): string;
  createStreamDecoder(): StreamDecoder;
  /** Highest id + 1. */
  readonly vocabSize: number;
  idOf(token: string): number | undefined;
  readonly endOfSequence: { readonly token: string; readonly id: number };
  /** Empty when the tokenizer has none. */
  readonly beginOfSequence: string;
  /** The spellings of all control tokens. */
  readonly specialTokens: readonly string[];
}

/** The part of the library that is used here; its own declarations lack file extensions, which Node's resolution needs. */
interface Library {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] };
  id_to_token(id: number): string | undefined;
  token_to_id(token: string): number | undefined;
  get_vocab(): Map<string, number>;
  get_added_tokens_decoder(): Map<number, { readonly content: string; readonly special: boolean }>;
}

/** Literals such as <|im_start|> in a chat template: each must be one token, or the model never saw it. */
const SPECIAL_LITERAL = /<[|｜][^|｜<>\s'"]{1,48}[|｜]>/g;
const REPLACEMENT = new Uint8Array([0xef, 0xbf, 0xbd]);

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function invalid(message: string, cure: string, cause?: unknown): HoneError {
  return new HoneError('invalid-tokenizer', message, cause === undefined ? { cure } : { cure, cause });
}

/** GPT-2's printable stand-in for each byte, inverted: character to byte. */
function byteOfCharacter(): Map<string, number> {
  const map = new Map<string, number>();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    map.set(String.fromCodePoint(printable ? byte : next++), byte);
  }
  return map;
}

/** True when some step of a (possibly nested) component has the given type. */
function hasStep(component: unknown, type: string): boolean {
  if (!isRecord(component)) return false;
  if (component['type'] === type) return true;
  for (const key of ['pretokenizers', 'decoders', 'processors'])
    if (Array.isArray(component[key]) && component[key].some((step) => hasStep(step, type))) return true;
  return false;
}

function hasPrefixSpace(component: unknown): boolean {
  if (!isRecord(component)) return false;
  if (component['type'] === 'ByteLevel' && component['add_prefix_space'] === true) return true;
  return Array.isArray(component['pretokenizers']) && component['pretokenizers'].some(hasPrefixSpace);
}

/** A special token in tokenizer_config.json is a string or an object with its content. */
function specialToken(config: Record<string, unknown>, key: string): string | undefined {
  const value = config[key];
  if (typeof value === 'string') return value;
  return isRecord(value) && typeof value['content'] === 'string' ? value['content'] : undefined;
}

/**
 * Opens a tokenizer from the parsed contents of tokenizer.json and tokenizer_config.json. `chatTemplate` is the
 * template that will be used with it, when it lies in its own file; its special tokens are checked too.
 */
export function openTokenizer(
  tokenizerJson: unknown,
  tokenizerConfig: unknown,
  options: { chatTemplate?: string } = {},
): Tokenizer {
  if (!isRecord(tokenizerJson) || !isRecord(tokenizerConfig))
    throw invalid(
      'tokenizer.json and tokenizer_config.json must each hold a JSON object.',
      'Copy both files again from the model folder that they came with.',
    );
  const model = tokenizerJson['model'];
  if (
    !isRecord(model) ||
    model['type'] !== 'BPE' ||
    !hasStep(tokenizerJson['pre_tokenizer'], 'ByteLevel') ||
    !hasStep(tokenizerJson['decoder'], 'ByteLevel')
  )
    throw invalid(
      'The tokenizer is not byte-level BPE, the only family that is supported.',
      'Use a model of the Qwen or Llama 3 family, whose tokenizer.json has a ByteLevel pre-tokenizer and decoder.',
    );
  if (hasPrefixSpace(tokenizerJson['pre_tokenizer']))
    throw invalid(
      'The tokenizer adds a space before each text, so text cannot be appended exactly.',
      'Set add_prefix_space to false in the ByteLevel pre-tokenizer of tokenizer.json.',
    );

  let library: Library;
  try {
    // The shape above is what the library documents; the assertion stands in for its unresolved types.
    library = new (LibraryTokenizer as unknown as new (json: object, config: object) => Library)(
      tokenizerJson,
      tokenizerConfig,
    );
  } catch (cause) {
    throw invalid(
      `tokenizer.json cannot be opened: ${reasonOf(cause)}.`,
      'Copy tokenizer.json again from the model folder that it came with.',
      cause,
    );
  }

  const byteOf = byteOfCharacter();
  const added = library.get_added_tokens_decoder();
  const ids = library.get_vocab();
  let vocabSize = 0;
  for (const id of ids.values()) vocabSize = Math.max(vocabSize, id + 1);
  const missingBytes = [...byteOf]
    .filter(([character]) => library.token_to_id(character) === undefined)
    .map(([, byte]) => byte);
  if (missingBytes.length > 0)
    throw invalid(
      `The vocabulary lacks the single-byte tokens ${missingBytes
        .slice(0, 8)
        .map((byte) => `0x${byte.toString(16)}`)
        .join(
          ', ',
        )}${missingBytes.length > 8 ? ` and ${missingBytes.length - 8} more` : ''}, so some text cannot be written.`,
      'Train the tokenizer with the whole byte alphabet as initial alphabet.',
    );

  const encoder = new TextEncoder();
  const bytesOfId: Uint8Array[] = new Array<Uint8Array>(vocabSize);
  for (let id = 0; id < vocabSize; id++) {
    const token = library.id_to_token(id);
    if (token === undefined) bytesOfId[id] = REPLACEMENT;
    else if (added.has(id)) bytesOfId[id] = encoder.encode(token);
    else bytesOfId[id] = Uint8Array.from(Array.from(token), (character) => byteOf.get(character) ?? 0x3f);
  }

  const idOf = (token: string): number | undefined => library.token_to_id(token);
  const endToken = specialToken(tokenizerConfig, 'eos_token');
  const embedded = tokenizerConfig['chat_template'];
  const template = options.chatTemplate ?? (typeof embedded === 'string' ? embedded : '');
  const needed = new Set([...(endToken === undefined ? [] : [endToken]), ...(template.match(SPECIAL_LITERAL) ?? [])]);
  const absent = [...needed].filter((token) => idOf(token) === undefined);
  if (endToken === undefined) absent.unshift('eos_token');
  const endId = endToken === undefined ? undefined : idOf(endToken);
  if (endToken === undefined || endId === undefined || absent.length > 0)
    throw invalid(
      `The tokenizer lacks the special tokens ${absent.join(', ')}, which its configuration or chat template needs.`,
      'Add them to added_tokens in tokenizer.json and name eos_token in tokenizer_config.json.',
    );

  // ignoreBOM keeps U+FEFF as text.
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  return {
    vocabSize,
    idOf,
    endOfSequence: { token: endToken, id: endId },
    beginOfSequence: specialToken(tokenizerConfig, 'bos_token') ?? '',
    specialTokens: [...added.values()].filter((token) => token.special).map((token) => token.content),
    encode: (text) =>
      text.length === 0 ? new Int32Array(0) : Int32Array.from(library.encode(text, { add_special_tokens: false }).ids),
    decode: (list) => {
      let length = 0;
      for (let index = 0; index < list.length; index++) length += (bytesOfId[list[index] ?? -1] ?? REPLACEMENT).length;
      const bytes = new Uint8Array(length);
      let position = 0;
      for (let index = 0; index < list.length; index++) {
        const piece = bytesOfId[list[index] ?? -1] ?? REPLACEMENT;
        bytes.set(piece, position);
        position += piece.length;
      }
      return decoder.decode(bytes);
    },
    createStreamDecoder: () => {
      const streaming = new TextDecoder('utf-8', { ignoreBOM: true });
      return {
        push: (id) => streaming.decode(bytesOfId[id] ?? REPLACEMENT, { stream: true }),
        flush: () => streaming.decode(),
      };
    },
  };
}
