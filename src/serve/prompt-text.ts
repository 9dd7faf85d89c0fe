/**
 * The prompt of a turn: its exact text, and its ids from any position on. Invariant: control tokens come from the
 * template alone. A control token's spelling inside a message, such as in source code under review, is encoded as the
 * plain characters that it is, so that no content can fake a turn.
 */
import type { ChatTemplate, TemplateMessage } from '../model/chat-template.ts';
import type { Tokenizer } from '../model/tokenizer.ts';

export interface PromptText {
  readonly text: string;
  encodeFrom(position: number): Int32Array;
}

const escapeForPattern = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/gu, String.raw`\$&`);

/** A private-use character that occurs in none of the messages. */
function unusedCharacter(messages: readonly TemplateMessage[]): string {
  for (let code = 0xe000; code < 0xf8ff; code++) {
    const character = String.fromCharCode(code);
    if (!messages.some((message) => message.content.includes(character))) return character;
  }
  return String.fromCharCode(0xf8ff);
}

export function createPromptRenderer(
  template: ChatTemplate,
  tokenizer: Tokenizer,
): (messages: readonly TemplateMessage[], tools: readonly unknown[] | undefined) => PromptText {
  const control = new RegExp(tokenizer.specialTokens.map(escapeForPattern).join('|') || '(?!)', 'gu');
  return (messages, tools) => {
    const options = { addGenerationPrompt: true, ...(tools === undefined ? {} : { tools }) };
    if (!messages.some((message) => message.content.search(control) >= 0)) {
      const text = template.render(messages, options);
      return { text, encodeFrom: (position) => tokenizer.encode(text.slice(position)) };
    }
    // A mark inside each spelling survives the rendering; the text is cut there before it is encoded.
    const mark = unusedCharacter(messages);
    const marked = messages.map((message) => ({
      ...message,
      content: message.content.replace(control, (found) => found.slice(0, 1) + mark + found.slice(1)),
    }));
    const pieces = template.render(marked, options).split(mark);
    return {
      text: pieces.join(''),
      encodeFrom: (position) => {
        const ids: Int32Array[] = [];
        let start = 0;
        for (const piece of pieces) {
          if (start + piece.length > position) ids.push(tokenizer.encode(piece.slice(Math.max(0, position - start))));
          start += piece.length;
        }
        return concatenate(ids);
      },
    };
  };
}

export function concatenate(arrays: readonly Int32Array[]): Int32Array {
  const whole = new Int32Array(arrays.reduce((length, array) => length + array.length, 0));
  let position = 0;
  for (const array of arrays) {
    whole.set(array, position);
    position += array.length;
  }
  return whole;
}
