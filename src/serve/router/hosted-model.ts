/**
 * What a router needs of a model to record for agents: how text becomes tokens and messages become text. The weights stay unread,
 * so that a router in front of a large model starts at once and fits on a small machine.
 */
import { readFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';

import { HoneError, reasonOf } from '../../domain/errors.ts';
import { openChatTemplate } from '../../model/chat-template.ts';
import type { ChatTemplate } from '../../model/chat-template.ts';
import { openTokenizer } from '../../model/tokenizer.ts';
import type { Tokenizer } from '../../model/tokenizer.ts';

export interface HostedModel {
  /** The model's name in replies. */
  readonly name: string;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
}

/** Rejects with `invalid-model` or `invalid-tokenizer`, naming the file. */
export async function openHostedModel(folder: string): Promise<HostedModel> {
  const tokenizerJson = await readJson(folder, 'tokenizer.json');
  const tokenizerConfig = await readJson(folder, 'tokenizer_config.json');
  const source = (await readOptional(folder, 'chat_template.jinja')) ?? templateOf(tokenizerConfig);
  if (source === undefined)
    throw new HoneError('invalid-tokenizer', `${folder} has no chat template.`, {
      cure: 'Add chat_template.jinja, or chat_template in tokenizer_config.json.',
    });
  const tokenizer = openTokenizer(tokenizerJson, tokenizerConfig, { chatTemplate: source });
  const { beginOfSequence, endOfSequence } = tokenizer;
  const template = openChatTemplate(source, { bos: beginOfSequence, eos: endOfSequence.token });
  return { name: basename(resolve(folder)), tokenizer, template };
}

async function readJson(folder: string, file: string): Promise<unknown> {
  const text = await readOptional(folder, file);
  if (text === undefined)
    throw new HoneError('invalid-model', `${folder} has no ${file}.`, {
      cure: 'Name a Hugging Face folder with its tokenizer.',
    });
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HoneError('invalid-model', `${join(folder, file)} is not JSON: ${reasonOf(error)}.`, {
      cure: 'Copy the file again from where the model came from.',
      cause: error,
    });
  }
}

async function readOptional(folder: string, file: string): Promise<string | undefined> {
  try {
    return await readFile(join(folder, file), 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

function templateOf(config: unknown): string | undefined {
  const found = typeof config === 'object' && config !== null && 'chat_template' in config && config.chat_template;
  return typeof found === 'string' ? found : undefined;
}
