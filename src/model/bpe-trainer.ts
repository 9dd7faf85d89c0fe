/**
 * Trains a byte-level BPE vocabulary and writes it as a Hugging Face tokenizer.json. Reading and encoding are the
 * tokenizer library's work; no maintained JavaScript library trains one. Deterministic: ties go to the pair that
 * sorts first. Words never carry a leading space, so that the same name is the same tokens wherever it stands.
 */

/** camelCase parts, capitals, single digits, punctuation with the blanks around it, line breaks with their indentation. */
const CODE_PATTERN = '[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]|[ \\t]*[^\\sA-Za-z0-9]+[ \\t]*|\\n[ \\t]*|\\s';

export interface BpeOptions {
  /** Size of the whole vocabulary: 256 bytes, merges and added tokens. */
  readonly vocabSize: number;
  /** Control tokens, such as role marks. */
  readonly specialTokens: readonly string[];
  /** Ordinary words that get one id each wherever they occur, such as `[-`. */
  readonly addedTokens: readonly string[];
}

/** GPT-2's map from byte to printable character. */
function byteCharacters(): string[] {
  const characters: string[] = [];
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    characters.push(String.fromCharCode(printable ? byte : next++));
  }
  return characters;
}

interface Word {
  symbols: number[];
  readonly count: number;
}

const pairKey = (left: number, right: number): number => left * 65536 + right;

function countWords(texts: Iterable<string>, addedTokens: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  const pattern = new RegExp(CODE_PATTERN, 'gu');
  const escaped = addedTokens.map((token) => token.replace(/[.*+?^${}()|[\]\\]/gu, '\\$&'));
  const added = escaped.length === 0 ? undefined : new RegExp(escaped.join('|'), 'u');
  for (const text of texts) {
    const pieces = added === undefined ? [text] : text.split(added);
    for (const piece of pieces)
      for (const word of piece.match(pattern) ?? []) counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  return counts;
}

/** Merge rules by falling frequency; `vocabulary` holds the symbols in id order. */
function learnMerges(counts: Map<string, number>, merges: number): { vocabulary: string[]; rules: [string, string][] } {
  const characters = byteCharacters();
  const vocabulary = [...characters];
  const encoder = new TextEncoder();
  // Sorted, so that the order in which texts were read cannot show.
  const words: Word[] = [...counts]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([text, count]) => ({ symbols: [...encoder.encode(text)], count }));
  const pairCounts = new Map<number, number>();
  const pairWords = new Map<number, Set<number>>();
  const change = (key: number, word: number, delta: number): void => {
    pairCounts.set(key, (pairCounts.get(key) ?? 0) + delta);
    if (delta > 0) {
      let holders = pairWords.get(key);
      if (holders === undefined) pairWords.set(key, (holders = new Set()));
      holders.add(word);
    }
  };
  const eachPair = (index: number, sign: 1 | -1): void => {
    const word = words[index];
    if (word === undefined) return;
    for (let at = 0; at + 1 < word.symbols.length; at++)
      change(pairKey(word.symbols[at] ?? 0, word.symbols[at + 1] ?? 0), index, sign * word.count);
  };
  for (let index = 0; index < words.length; index++) eachPair(index, 1);
  const known = new Set(vocabulary);
  const rules: [string, string][] = [];
  while (rules.length < merges) {
    let best = -1;
    let bestCount = 1;
    let bestText = '';
    for (const [key, count] of pairCounts) {
      if (count < bestCount || count < 2) continue;
      const text = `${vocabulary[Math.floor(key / 65536)]} ${vocabulary[key % 65536]}`;
      if (count > bestCount || best < 0 || text < bestText) [best, bestCount, bestText] = [key, count, text];
    }
    if (best < 0) break;
    const left = Math.floor(best / 65536);
    const right = best % 65536;
    const merged = `${vocabulary[left]}${vocabulary[right]}`;
    const holders = pairWords.get(best) ?? new Set<number>();
    if (known.has(merged)) {
      // Another pair already spells this symbol: a second id for it could never be decoded apart.
      pairCounts.delete(best);
      continue;
    }
    known.add(merged);
    const id = vocabulary.length;
    vocabulary.push(merged);
    rules.push([vocabulary[left] ?? '', vocabulary[right] ?? '']);
    for (const index of holders) {
      const word = words[index];
      if (word === undefined) continue;
      eachPair(index, -1);
      const next: number[] = [];
      for (let at = 0; at < word.symbols.length; at++) {
        const symbol = word.symbols[at] ?? 0;
        if (symbol === left && word.symbols[at + 1] === right) {
          next.push(id);
          at++;
        } else next.push(symbol);
      }
      word.symbols = next;
      eachPair(index, 1);
    }
    pairCounts.delete(best);
    pairWords.delete(best);
  }
  return { vocabulary, rules };
}

/** The contents of tokenizer.json; ids are bytes, then merges, then special and added tokens. */
export function trainTokenizer(texts: Iterable<string>, options: BpeOptions): object {
  const extra = [...options.specialTokens, ...options.addedTokens];
  const merges = options.vocabSize - 256 - extra.length;
  const { vocabulary, rules } = learnMerges(countWords(texts, extra), merges);
  const special = new Set(options.specialTokens);
  const firstExtra = vocabulary.length;
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: extra.map((content, index) => ({
      id: firstExtra + index,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: special.has(content),
    })),
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: CODE_PATTERN }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries([
        ...vocabulary.map((text, id) => [text, id] as const),
        ...extra.map((text, index) => [text, firstExtra + index] as const),
      ]),
      merges: rules,
    },
  };
}
