/**
 * A small byte-level BPE tokenizer and two chat templates for tests: ChatML, and ChatML with tools as Qwen writes them.
 */

export const CHATML = `{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}`;

/** The tool part of Qwen's template, shortened. */
export const CHATML_TOOLS = `{%- if tools -%}
{{ '<|im_start|>system\\n<tools>' }}{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}{{ '\\n</tools><|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{%- if message.role == 'tool' -%}{{ '<tool_response>\\n' + message.content + '\\n</tool_response>' }}{%- else -%}{{ message.content }}{%- endif -%}
{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}
{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}`;

/** Parsed tokenizer.json and tokenizer_config.json: 256 bytes, a few merges, ChatML's special tokens. */
export function byteTokenizerFiles(): { json: Record<string, unknown>; config: Record<string, unknown> } {
  const vocab: Record<string, number> = {};
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[String.fromCodePoint(printable ? byte : next++)] = byte;
  }
  const merges: string[][] = [];
  for (const [left, right] of [
    ['o', 'k'],
    ['l', 'o'],
    ['lo', 'o'],
    ['loo', 'k'],
    ['Ġ', 'a'],
    ['e', 'r'],
    ['i', 'n'],
    ['in', 'g'],
    ['r', 'e'],
  ] as const) {
    merges.push([left, right]);
    vocab[left + right] = Object.keys(vocab).length;
  }
  const specials = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
  const base = Object.keys(vocab).length;
  return {
    json: {
      version: '1.0',
      added_tokens: specials.map((content, index) => ({
        id: base + index,
        content,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
        special: true,
      })),
      normalizer: null,
      pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: true },
      post_processor: null,
      decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: true },
      model: {
        type: 'BPE',
        dropout: null,
        unk_token: null,
        continuing_subword_prefix: null,
        end_of_word_suffix: null,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: false,
        vocab,
        merges,
      },
    },
    config: { eos_token: '<|im_end|>', bos_token: null, clean_up_tokenization_spaces: false },
  };
}
