/** A Hugging Face folder opened for a run: checked against its own config, with tokenizer, template and weights. */
import { HoneError } from '../domain/errors.ts';
import { openChatTemplate } from '../model/chat-template.ts';
import type { ChatTemplate } from '../model/chat-template.ts';
import { parameterShapes, parseModelConfig } from '../model/config.ts';
import type { ModelConfig } from '../model/config.ts';
import { openTokenizer } from '../model/tokenizer.ts';
import type { Tokenizer } from '../model/tokenizer.ts';
import { float32ToBfloat16 } from '../tensor/dtype.ts';
import { checkTensors } from '../tensor/check-tensors.ts';
import { readModelFolder, tensorToFloat32 } from '../tensor/hugging-face-folder.ts';
import type { ModelFolder } from '../tensor/hugging-face-folder.ts';

export interface LoadedModel {
  readonly folder: ModelFolder;
  readonly config: ModelConfig;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  readonly shapes: ReadonlyMap<string, readonly number[]>;
  /** f32, for the trainer's masters. */
  readonly weights: ReadonlyMap<string, Float32Array>;
  /** bf16 bytes, for the sampler. */
  readonly served: ReadonlyMap<string, Uint8Array>;
}

export async function loadModel(path: string): Promise<LoadedModel> {
  const folder = await readModelFolder(path);
  const config = parseModelConfig(folder.config);
  const shapes = parameterShapes(config);
  checkTensors(folder.tensors, shapes);
  if (folder.chatTemplate === undefined)
    throw new HoneError('invalid-tokenizer', `${path} has no chat template.`, {
      cure: 'Add chat_template.jinja, or chat_template in tokenizer_config.json.',
    });
  const tokenizer = openTokenizer(folder.tokenizerJson, folder.tokenizerConfig, { chatTemplate: folder.chatTemplate });
  if (tokenizer.vocabSize > config.vocabSize)
    throw new HoneError(
      'invalid-tokenizer',
      `${path} has a tokenizer of ${tokenizer.vocabSize} ids for a model of ${config.vocabSize}.`,
      { cure: 'Copy tokenizer and weights from the same model.' },
    );
  const template = openChatTemplate(folder.chatTemplate, {
    bos: tokenizer.beginOfSequence,
    eos: tokenizer.endOfSequence.token,
  });
  checkMarks(path, tokenizer, template);
  const weights = new Map<string, Float32Array>();
  const served = new Map<string, Uint8Array>();
  for (const name of shapes.keys()) {
    const tensor = folder.tensors.get(name);
    if (tensor === undefined) continue;
    const values = tensorToFloat32(tensor);
    weights.set(name, values);
    served.set(name, tensor.dtype === 'BF16' ? tensor.bytes : new Uint8Array(float32ToBfloat16(values).buffer));
  }
  return { folder, config, tokenizer, template, shapes, weights, served };
}

/** Marks such as `<|assistant|>`, written out or put together from a role by the template. */
const MARK = /<[|｜][^|｜<>\s]{1,48}[|｜]>/gu;

/** A mark that the tokenizer breaks up was never seen by the model, which then answers with noise. */
function checkMarks(path: string, tokenizer: Tokenizer, template: ChatTemplate): void {
  const messages = [
    { role: 'user', content: 'question' },
    { role: 'assistant', content: 'answer' },
    { role: 'user', content: 'question' },
  ];
  const marks = new Set(template.render(messages, { addGenerationPrompt: true }).match(MARK) ?? []);
  const broken = [...marks, tokenizer.endOfSequence.token].filter((mark) => tokenizer.encode(mark).length !== 1);
  if (broken.length === 0) return;
  throw new HoneError(
    'invalid-tokenizer',
    `The tokenizer of ${path} does not have ${broken.join(', ')} as one token, and the chat template writes it.`,
    { cure: 'Copy tokenizer.json from the same model as chat_template.jinja, or add it to added_tokens.' },
  );
}
