/**
 * A model's own chat template (Jinja), parsed once. It owns how messages become one prompt text and nothing else:
 * no tokenisation, no defaults. The same messages always give the same text.
 */
import { Template } from '@huggingface/jinja';

import { HoneError, reasonOf } from '../domain/errors.ts';

export interface TemplateToolCall {
  readonly type: 'function';
  readonly function: {
    readonly name: string;
    /** Parsed when it was valid JSON, as Hugging Face templates expect. */
    readonly arguments: unknown;
  };
}

export interface TemplateMessage {
  readonly role: string;
  readonly content: string;
  readonly tool_calls?: readonly TemplateToolCall[];
  readonly tool_call_id?: string;
  readonly name?: string;
}

export interface RenderOptions {
  readonly addGenerationPrompt: boolean;
  readonly tools?: readonly unknown[];
}

export interface ChatTemplate {
  /** Throws `invalid-tokenizer` with the template's own reason when it refuses the messages. */
  render(messages: readonly TemplateMessage[], options: RenderOptions): string;
  readonly supportsTools: boolean;
}

export function openChatTemplate(source: string, special: { bos: string; eos: string }): ChatTemplate {
  let template: Template;
  try {
    template = new Template(source);
  } catch (cause) {
    throw new HoneError('invalid-tokenizer', `The chat template cannot be parsed: ${reasonOf(cause)}.`, {
      cure: 'Copy chat_template again from the model folder that it came with.',
      cause,
    });
  }
  return {
    supportsTools: /\btools\b/.test(source),
    render: (messages, { addGenerationPrompt, tools }) => {
      try {
        return template.render({
          messages,
          add_generation_prompt: addGenerationPrompt,
          bos_token: special.bos,
          eos_token: special.eos,
          ...(tools === undefined ? {} : { tools }),
        });
      } catch (cause) {
        throw new HoneError('invalid-tokenizer', `The chat template refuses the messages: ${reasonOf(cause)}.`, {
          cure: 'Send roles and message order that the model was made for.',
          cause,
        });
      }
    },
  };
}
