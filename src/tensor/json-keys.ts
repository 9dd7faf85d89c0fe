/**
 * Finds a key that appears twice in one JSON object, which JSON.parse silently resolves to the last one.
 * Takes text that JSON.parse has already accepted; keys are compared after unescaping.
 */
export function findDuplicateKey(text: string): string | undefined {
  // One entry per open bracket: the keys seen in an object, or undefined for an array.
  const open: (Set<string> | undefined)[] = [];
  let expectsKey = false;
  for (let index = 0; index < text.length; index++) {
    switch (text.charCodeAt(index)) {
      case 0x7b: // {
        open.push(new Set());
        expectsKey = true;
        break;
      case 0x5b: // [
        open.push(undefined);
        expectsKey = false;
        break;
      case 0x7d: // }
      case 0x5d: // ]
        open.pop();
        expectsKey = false;
        break;
      case 0x2c: // ,
        expectsKey = open.at(-1) !== undefined;
        break;
      case 0x22: {
        const start = index++;
        while (text.charCodeAt(index) !== 0x22) index += text.charCodeAt(index) === 0x5c ? 2 : 1;
        if (!expectsKey) break;
        // A quoted string cut out of valid JSON is itself valid JSON, and parses to a string.
        const key = JSON.parse(text.slice(start, index + 1)) as string;
        const seen = open.at(-1);
        if (seen?.has(key)) return key;
        seen?.add(key);
        expectsKey = false;
        break;
      }
    }
  }
  return undefined;
}
