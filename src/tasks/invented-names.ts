/**
 * Names that a package does not declare but might have: sub-words of its own names, put together anew. A name and its
 * invention have the same number of sub-words and the same case style, so that neither looks more made up.
 * Invariant: an invented name occurs nowhere in the package's source and is no name of the language.
 */
import { isBuiltIn } from '../code/lookup-text.ts';
import type { Random } from '../domain/ids.ts';

const ATTEMPTS = 12;

export class InventedNames {
  readonly #used: ReadonlySet<string>;
  /** By place; a name of one word is made of a last word, which is mostly a noun. */
  readonly #first: string[] = [];
  readonly #middle: string[] = [];
  readonly #last: string[] = [];

  /** `used`: every identifier of the package; `declared`: names of its properties and methods, each once. */
  constructor(used: ReadonlySet<string>, declared: readonly string[]) {
    this.#used = used;
    for (const name of declared) {
      const words = splitName(name);
      words.forEach((word, index) => {
        if (/^[A-Za-z]{3,12}$/u.test(word)) this.#wordsAt(index, words.length).push(word.toLowerCase());
      });
    }
  }

  nameLike(name: string, random: Random): string | undefined {
    const words = splitName(name);
    if (words.length === 0) return undefined;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const at = random.below(words.length);
      const old = words[at] ?? '';
      const choices = this.#wordsAt(at, words.length);
      if (choices.length === 0) continue;
      const word = random.pick(choices);
      const invented = name.replace(old, inStyleOf(old, word));
      if (invented !== name && !this.#used.has(invented) && !isBuiltIn(invented)) return invented;
    }
    return undefined;
  }

  #wordsAt(index: number, count: number): string[] {
    if (index === count - 1) return this.#last;
    return index === 0 ? this.#first : this.#middle;
  }
}

function inStyleOf(old: string, word: string): string {
  if (/^[A-Z]{2,}$/u.test(old)) return word.toUpperCase();
  return /^[A-Z]/u.test(old) ? word.slice(0, 1).toUpperCase() + word.slice(1) : word;
}

/** `isHTTPServer` → is, HTTP, Server; `MAX_SIZE` → MAX, SIZE. */
function splitName(name: string): string[] {
  return name.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+/gu) ?? [];
}
