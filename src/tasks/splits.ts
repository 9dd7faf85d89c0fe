/**
 * Which packages serve which split. RL and held-out packages are named here, so that results compare across versions of
 * the corpus; every other package serves pre-training.
 */
import type { Task } from '../domain/task.ts';

export type Split = Task['metadata']['split'];

const RL_PACKAGES: ReadonlySet<string> = new Set([
  'undici',
  'ajv',
  'graphql',
  'yargs',
  'css-tree',
  'mysql2',
  'rxjs',
  'koa',
  'chokidar',
  'fs-extra',
  'winston',
  'mongodb',
  'knex',
  'ioredis',
  'stylelint',
  'discord.js',
  '@npmcli/arborist',
]);
const HELD_OUT_PACKAGES: ReadonlySet<string> = new Set([
  'commander',
  'semver',
  'ws',
  'zod',
  'yaml',
  'express',
  'axios',
  'fastify',
  'luxon',
  'mongoose',
  'imapflow',
  'kafkajs',
  'nodemailer',
  'amqplib',
  'pacote',
  'mocha',
  'log4js',
  'got',
  'xstate',
  'telegraf',
]);

export function splitOf(packageName: string): Split {
  if (RL_PACKAGES.has(packageName)) return 'rl';
  return HELD_OUT_PACKAGES.has(packageName) ? 'heldout' : 'pretrain';
}

/** A function that also stands in an earlier split is left out of a later one. */
export const SPLITS_BY_PRECEDENCE = ['heldout', 'rl', 'pretrain'] as const satisfies readonly Split[];
