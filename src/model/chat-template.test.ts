import { expect, test } from 'vitest';

import { CHATML, CHATML_TOOLS } from './tokenizer.fixture.ts';
import { openChatTemplate } from './chat-template.ts';

const special = { bos: '<s>', eos: '</s>' };

test('messages render with and without the generation prompt', () => {
  const template = openChatTemplate(CHATML, special);
  const messages = [{ role: 'user', content: 'a <b> & "c"' }];
  const turn = '<|im_start|>user\na <b> & "c"<|im_end|>\n';
  expect(template.render(messages, { addGenerationPrompt: false })).toBe(turn);
  expect(template.render(messages, { addGenerationPrompt: true })).toBe(`${turn}<|im_start|>assistant\n`);
  expect(template.supportsTools).toBe(false);
});

test('tools and special tokens reach the template', () => {
  expect(openChatTemplate('{{ bos_token }}{{ eos_token }}', special).render([], { addGenerationPrompt: false })).toBe(
    '<s></s>',
  );
  const template = openChatTemplate(CHATML_TOOLS, special);
  expect(template.supportsTools).toBe(true);
  expect(template.render([], { addGenerationPrompt: false, tools: [{ name: 'read' }] })).toContain('{"name": "read"}');
});

test('a broken template and a refusal say why', () => {
  expect(() => openChatTemplate('{% if %}', special)).toThrow(/cannot be parsed/);
  const refusing = openChatTemplate("{{ raise_exception('roles must alternate') }}", special);
  expect(() => refusing.render([], { addGenerationPrompt: true })).toThrow(/roles must alternate/);
});
