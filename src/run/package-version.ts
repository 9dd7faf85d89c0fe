/** The version that the package was published under, read from its own package.json. */
import { readFileSync } from 'node:fs';

const manifest: unknown = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));

// package.json always has a version; it is ours.
export const PACKAGE_VERSION = (manifest as { version: string }).version;
