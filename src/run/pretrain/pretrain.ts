/**
 * Trains a small base model from a recipe: tokenizer, then plain source, then sweep conversations; writes a Hugging Face
 * folder. Nothing here depends on the clock, on thread count or on the machine when the recipe names the plain build.
 */
import { ConversationEncoder, drawnLooks, perfectConversation } from './examples.ts';
import type { TrainingSequence } from './examples.ts';
import { learningRateAt } from './recipe.ts';
import type { Recipe } from './recipe.ts';
import { BUG_CATEGORIES } from '../../domain/task.ts';
import { WORD_DIFF_MARKS } from '../../code/word-diff.ts';
import { createRandom, deriveSeed } from '../../domain/ids.ts';
import { trainTokenizer } from '../../model/bpe-trainer.ts';
import { openChatTemplate } from '../../model/chat-template.ts';
import type { ChatTemplate } from '../../model/chat-template.ts';
import { initialWeights, parameterShapes, parseModelConfig } from '../../model/config.ts';
import { createEngine } from '../../model/engine.ts';
import { openTokenizer } from '../../model/tokenizer.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';
import { TrainingModel } from '../../model/training.ts';
import { drawTask } from '../../tasks/draw.ts';
import { openCorpus } from '../../tasks/corpus.ts';
import type { Corpus } from '../../tasks/corpus.ts';
import { writeModelFolder } from '../../tensor/hugging-face-folder.ts';

/** One token a role and one at the end of each turn: short conversations stay short. */
const CHAT_TEMPLATE =
  "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
const END_TOKEN = '<|end|>';
const TEXT_TOKEN = '<|text|>';
const SPECIAL_TOKENS = [TEXT_TOKEN, END_TOKEN, '<|system|>', '<|user|>', '<|assistant|>'];

export interface PretrainProgress {
  readonly step: number;
  readonly steps: number;
  readonly phase: 'language' | 'check';
  /** Mean nats a trained token since the last report. */
  readonly loss: number;
  readonly tokens: number;
  readonly seconds: number;
}

export interface PretrainSummary {
  readonly parameters: number;
  readonly tokens: number;
  readonly answerTokens: number;
  readonly conversations: number;
  readonly languageLoss: number;
  readonly checkLoss: number;
  readonly packages: readonly string[];
  readonly functions: number;
  readonly seconds: number;
}

export interface PretrainOptions {
  readonly outDirectory: string;
  readonly threads: number;
  readonly onProgress: (progress: PretrainProgress) => void;
  /** Steps between two progress reports. */
  readonly reportEvery?: number;
  readonly signal?: AbortSignal;
}

export async function pretrain(recipe: Recipe, options: PretrainOptions): Promise<PretrainSummary> {
  const started = performance.now();
  const corpus = await openCorpus({ split: 'pretrain', ...recipe.corpus });
  const { tokenizer, tokenizerJson, tokenizerConfig } = await buildTokenizer(recipe, corpus);
  const template = openChatTemplate(CHAT_TEMPLATE, { bos: TEXT_TOKEN, eos: END_TOKEN });
  const configJson = modelConfigJson(recipe, tokenizer);
  const config = parseModelConfig(configJson);
  const engine = await createEngine({ build: recipe.build, threads: options.threads });
  const model = TrainingModel.create(engine, config, initialWeights(config, deriveSeed(recipe.seed, 'weights')));
  const source = createSource(recipe, corpus, tokenizer, template);
  const steps = recipe.language.steps + recipe.check.steps;
  const totals = { tokens: 0, answerTokens: 0, conversations: 0, languageLoss: 0, checkLoss: 0 };
  const reportEvery = options.reportEvery ?? 20;
  let windowLoss = 0;
  let windowWeight = 0;
  try {
    for (let step = 0; step < steps; step++) {
      options.signal?.throwIfAborted();
      const phase = step < recipe.language.steps ? 'language' : 'check';
      const sequences = await source(phase, step);
      const weight = sequences.reduce((sum, sequence) => sum + sequence.weights.reduce((a, b) => a + b, 0), 0);
      const loss = trainStep(model, sequences, weight);
      model.step({
        learningRate: learningRateAt(recipe, step, steps),
        beta1: recipe.beta1,
        beta2: recipe.beta2,
        epsilon: 1e-8,
        weightDecay: recipe.weightDecay,
        clipNorm: recipe.clipNorm,
      });
      totals.tokens += sequences.reduce((sum, sequence) => sum + sequence.tokens.length, 0);
      if (phase === 'check') {
        totals.conversations += sequences.length;
        totals.answerTokens += sequences.reduce(
          (sum, sequence) => sum + sequence.weights.filter((w) => w === 1).length,
          0,
        );
      }
      windowLoss += loss * weight;
      windowWeight += weight;
      const last = step + 1 === recipe.language.steps || step + 1 === steps;
      if ((step + 1) % reportEvery === 0 || last) {
        const mean = windowLoss / windowWeight;
        if (phase === 'language') totals.languageLoss = mean;
        else totals.checkLoss = mean;
        options.onProgress({
          step: step + 1,
          steps,
          phase,
          loss: mean,
          tokens: totals.tokens,
          seconds: (performance.now() - started) / 1000,
        });
        windowLoss = 0;
        windowWeight = 0;
      }
    }
    const shapes = parameterShapes(config);
    const tensors = new Map(
      [...model.servedWeights()].map(([name, bytes]) => [
        name,
        { dtype: 'BF16' as const, shape: shapes.get(name) ?? [], bytes },
      ]),
    );
    await writeModelFolder(options.outDirectory, {
      config: configJson,
      generationConfig: { eos_token_id: tokenizer.endOfSequence.id, do_sample: true, temperature: 1 },
      tokenizerJson,
      tokenizerConfig,
      chatTemplate: CHAT_TEMPLATE,
      tensors,
    });
    const parameters = [...shapes.values()].reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
    return {
      parameters,
      ...totals,
      packages: corpus.packages.map(({ name }) => name),
      functions: corpus.functions.length,
      seconds: (performance.now() - started) / 1000,
    };
  } finally {
    await engine.close();
  }
}

/** Cross-entropy over the trained positions; returns its weighted mean. */
function trainStep(model: TrainingModel, sequences: readonly TrainingSequence[], weight: number): number {
  let loss = 0;
  let at = 0;
  const inputs = sequences.map(({ tokens, positions }) => ({ tokens, positions, temperature: 1 }));
  model.accumulate(inputs, (outputs) =>
    outputs.map((output) => {
      const { weights } = sequences[at++] ?? { weights: new Float32Array(0) };
      const gradient = new Float32Array(weights.length);
      for (let index = 0; index < weights.length; index++) {
        loss -= ((weights[index] ?? 0) * (output.logprobs[index] ?? 0)) / weight;
        gradient[index] = -(weights[index] ?? 0) / weight;
      }
      return { logprobs: gradient };
    }),
  );
  return loss;
}

type Source = (phase: 'language' | 'check', step: number) => Promise<TrainingSequence[]>;

function createSource(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, template: ChatTemplate): Source {
  const encoder = new ConversationEncoder(tokenizer, template);
  const order = corpus.functions.map((_, index) => index);
  const shuffle = createRandom(deriveSeed(recipe.seed, 'order'));
  for (let index = order.length - 1; index > 0; index--) {
    const other = shuffle.below(index + 1);
    [order[index], order[other]] = [order[other] ?? 0, order[index] ?? 0];
  }
  let next = 0;
  let drawn = 0;
  return async (phase, step) => {
    const sequences: TrainingSequence[] = [];
    let tokens = 0;
    while (tokens < recipe.tokensPerStep) {
      let sequence: TrainingSequence;
      if (phase === 'language') {
        const entry = corpus.functions[order[next++ % order.length] ?? 0];
        const ids = tokenizer
          .encode(`${TEXT_TOKEN}${entry?.text ?? ''}${END_TOKEN}`)
          .slice(0, recipe.language.maxTokens);
        sequence = {
          tokens: ids,
          positions: Int32Array.from({ length: ids.length - 1 }, (_, index) => index + 1),
          weights: new Float32Array(ids.length - 1).fill(1),
        };
      } else {
        const random = createRandom(deriveSeed(recipe.seed, 'conversation', step, drawn));
        const task = drawTask(corpus, deriveSeed(recipe.seed, 'task', drawn++), {
          bugShare: recipe.check.bugShare,
          elsewhereShare: recipe.check.elsewhereShare,
        });
        const listNames = random.next() >= recipe.check.withoutNamesRate;
        const messages = perfectConversation(task, await corpus.index(task.environment.package), {
          listNames,
          looks: drawnLooks(recipe.check, random),
        });
        sequence = encoder.encode(messages, recipe.check.languageWeight);
      }
      tokens += sequence.tokens.length;
      sequences.push(sequence);
    }
    return sequences;
  };
}

async function buildTokenizer(
  recipe: Recipe,
  corpus: Corpus,
): Promise<{ tokenizer: Tokenizer; tokenizerJson: object; tokenizerConfig: object }> {
  const texts: string[] = corpus.functions.map((entry) => entry.text);
  // Conversations too, so that words of the format and of look-ups get merges.
  for (let index = 0; index < 2000; index++) {
    const seed = deriveSeed(recipe.seed, 'tokenizer', index);
    const task = drawTask(corpus, seed, { elsewhereShare: recipe.check.elsewhereShare });
    const messages = perfectConversation(task, await corpus.index(task.environment.package), {
      listNames: true,
      looks: drawnLooks({ ...recipe.check, lookRate: 0.5 }, createRandom(seed)),
    });
    for (const message of messages) texts.push(message.content);
  }
  const categories = BUG_CATEGORIES.filter((category) => category.includes('-'));
  const tokenizerJson = trainTokenizer(texts, {
    vocabSize: recipe.vocabSize,
    specialTokens: SPECIAL_TOKENS,
    addedTokens: [...Object.values(WORD_DIFF_MARKS), ...categories],
  });
  const tokenizerConfig = {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: TEXT_TOKEN,
    eos_token: END_TOKEN,
    pad_token: TEXT_TOKEN,
    add_bos_token: false,
    clean_up_tokenization_spaces: false,
    model_max_length: recipe.architecture.contextLength,
    chat_template: CHAT_TEMPLATE,
  };
  return { tokenizer: openTokenizer(tokenizerJson, tokenizerConfig), tokenizerJson, tokenizerConfig };
}

/** A Qwen3 config: QK-norm, no biases, untied head. */
function modelConfigJson(recipe: Recipe, tokenizer: Tokenizer): object {
  const { architecture } = recipe;
  return {
    architectures: ['Qwen3ForCausalLM'],
    model_type: 'qwen3',
    hidden_size: architecture.hiddenSize,
    intermediate_size: architecture.intermediateSize,
    num_hidden_layers: architecture.layers,
    num_attention_heads: architecture.heads,
    num_key_value_heads: architecture.kvHeads,
    head_dim: architecture.headDim,
    hidden_act: 'silu',
    rms_norm_eps: 1e-6,
    rope_theta: architecture.ropeTheta,
    rope_scaling: null,
    attention_bias: false,
    attention_dropout: 0,
    max_position_embeddings: architecture.contextLength,
    vocab_size: tokenizer.vocabSize,
    tie_word_embeddings: false,
    bos_token_id: tokenizer.idOf(TEXT_TOKEN),
    eos_token_id: tokenizer.endOfSequence.id,
    use_cache: true,
    use_sliding_window: false,
    initializer_range: 0.02,
    torch_dtype: 'bfloat16',
  };
}
