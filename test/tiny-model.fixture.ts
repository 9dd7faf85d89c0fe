/**
 * A Hugging Face folder of some thirty thousand parameters that runs in milliseconds. Its weights are set by hand, not trained: after
 * `<|assistant|>` it draws a verdict or a look-up, after a verdict the end of the turn, and now and then something
 * unreadable, so that groups of answers differ and a step has something to learn.
 */
import { BUG_CATEGORIES } from '../src/domain/task.ts';
import { WORD_DIFF_MARKS } from '../src/code/word-diff.ts';
import { trainTokenizer } from '../src/model/bpe-trainer.ts';
import { initialWeights, parameterShapes, parseModelConfig } from '../src/model/config.ts';
import { openTokenizer } from '../src/model/tokenizer.ts';
import { float32ToBfloat16 } from '../src/tensor/dtype.ts';
import { writeModelFolder } from '../src/tensor/hugging-face-folder.ts';

const END = '<|end|>';
const TEXT = '<|text|>';
const ASSISTANT = '<|assistant|>';
const CHAT_TEMPLATE = `{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '${END}' }}{% endfor %}{% if add_generation_prompt %}{{ '${ASSISTANT}' }}{% endif %}`;
const HIDDEN_SIZE = 32;

/** What follows a token, and how strongly; everything else has a logit near 0. */
const FOLLOWERS: readonly (readonly [token: string, next: string, logit: number])[] = [
  [ASSISTANT, 'ok', 9],
  [ASSISTANT, 'wrong-logic', 8.5],
  [ASSISTANT, 'off-by-one', 8],
  [ASSISTANT, 'look', 7.5],
  ['ok', END, 11],
  ['wrong-logic', END, 11],
  ['off-by-one', END, 11],
  ['look', ' ', 11],
  [' ', '1', 11],
  ['1', END, 11],
];

/** Overrides go into config.json as they are; the weights are always those of the sizes above. */
export async function writeTinyModel(
  path: string,
  { contextLength = 1024 }: { contextLength?: number } = {},
): Promise<void> {
  const tokenizerJson = trainTokenizer(
    Array.from({ length: 40 }, () => 'ok look return const function'),
    {
      vocabSize: 304,
      specialTokens: [TEXT, END, '<|system|>', '<|user|>', ASSISTANT],
      addedTokens: [...Object.values(WORD_DIFF_MARKS), ...BUG_CATEGORIES.filter((category) => category.includes('-'))],
    },
  );
  const tokenizerConfig = {
    bos_token: TEXT,
    eos_token: END,
    pad_token: TEXT,
    clean_up_tokenization_spaces: false,
    chat_template: CHAT_TEMPLATE,
  };
  const tokenizer = openTokenizer(tokenizerJson, tokenizerConfig);
  const configJson = {
    architectures: ['Qwen3ForCausalLM'],
    model_type: 'qwen3',
    hidden_size: HIDDEN_SIZE,
    intermediate_size: 32,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    head_dim: 16,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000,
    max_position_embeddings: contextLength,
    vocab_size: tokenizer.vocabSize,
    tie_word_embeddings: false,
    eos_token_id: tokenizer.endOfSequence.id,
  };
  const config = parseModelConfig(configJson);
  const weights = initialWeights(config, 1);
  const embeddings = weights.get('model.embed_tokens.weight') ?? new Float32Array();
  const head = weights.get('lm_head.weight') ?? new Float32Array();
  for (const [token, next, logit] of FOLLOWERS) {
    const from = (idOf(token) ?? 0) * HIDDEN_SIZE;
    const to = (idOf(next) ?? 0) * HIDDEN_SIZE;
    const vector = embeddings.subarray(from, from + HIDDEN_SIZE);
    const norm = Math.hypot(...vector);
    // The last norm makes the hidden vector sqrt(hidden size) long; it points where the embedding does.
    for (let index = 0; index < HIDDEN_SIZE; index++)
      head[to + index] = (head[to + index] ?? 0) + (logit * (vector[index] ?? 0)) / (norm * Math.sqrt(HIDDEN_SIZE));
  }
  const shapes = parameterShapes(config);
  const tensors = new Map(
    [...weights].map(([name, values]) => [
      name,
      {
        dtype: 'BF16' as const,
        shape: shapes.get(name) ?? [],
        bytes: new Uint8Array(float32ToBfloat16(values).buffer),
      },
    ]),
  );
  await writeModelFolder(path, {
    config: configJson,
    tokenizerJson,
    tokenizerConfig,
    chatTemplate: CHAT_TEMPLATE,
    tensors,
  });

  function idOf(token: string): number {
    const ids = tokenizer.encode(token);
    const [id] = ids;
    if (ids.length !== 1 || id === undefined)
      throw new Error(`${JSON.stringify(token)} is ${ids.length} tokens, not one`);
    return id;
  }
}
