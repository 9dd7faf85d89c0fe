/**
 * The part of the WebAssembly JavaScript interface that the engine uses. It is a global of Node, but its types come
 * only with the browser's library, which this package does not load.
 */
declare namespace WebAssembly {
  class Module {
    private readonly compiled: unknown;
  }
  class Memory {
    constructor(descriptor: { initial: number; maximum: number; shared: true });
    readonly buffer: SharedArrayBuffer;
    grow(pages: number): number;
  }
  class Global {
    value: number;
  }
  class Instance {
    /** A module that owns its memory needs no imports. */
    constructor(module: Module, imports?: { env: { memory: Memory } });
    readonly exports: Readonly<Record<string, unknown>>;
  }
  function compile(bytes: Uint8Array<ArrayBuffer>): Promise<Module>;
  function validate(bytes: Uint8Array<ArrayBuffer>): boolean;
}
