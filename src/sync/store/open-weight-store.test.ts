import { execFile } from 'node:child_process';
import { mkdtemp, readdir, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { afterEach, beforeEach, expect, it } from 'vitest';

import { openWeightStore } from './open-weight-store.ts';
import { parseS3Location } from './s3-location.ts';
import { bodyOf } from './weight-store.ts';

let root: string;
beforeEach(async () => {
  root = await realpath(await mkdtemp(join(tmpdir(), 'hone-open-')));
});
afterEach(() => rm(root, { recursive: true }));

it('opens a folder by its path and by its URL as one store', async () => {
  const byPath = await openWeightStore(join(root, 'weights'));
  const byUrl = await openWeightStore(pathToFileURL(join(root, 'weights')).href);
  await byPath.putObject('run/a', bodyOf(Buffer.from('x')));
  expect(await byUrl.statObject('run/a')).toMatchObject({ sizeBytes: 1 });
  expect([byPath.location, byUrl.location]).toEqual([join(root, 'weights'), join(root, 'weights')]);
});

it.each([
  ['', 'is empty'],
  ['gs://bucket/run', 'cannot be at gs:'],
  ['https://host/bucket', 'cannot be at https:'],
  ['file:///folder?fast=1', 'not the URL of a folder'],
  ['file://host/folder', 'not the URL of a folder'],
  ['s3://', 's3:// names no bucket'],
  ['s3:/foo', 's3:/foo names no bucket'],
  ['s3:me:hunter2@bucket/run?region=hunter2', '…@bucket/run names no bucket'],
  ['s3://Bucket_/run?region=r', '"Bucket_" in s3://Bucket_/run is not the name of a bucket'],
  ['s3://bucket:9000/run?region=r', 'not the name of a bucket'],
  ['s3://bucket/run', 'names no region'],
  ['s3://bucket/run?region=r&profile=x&pathstyle=true', 'profile, pathstyle, which nothing reads'],
  ['s3://bucket/run?region=r&pathStyle=yes', 'pathStyle of s3://bucket is "yes"'],
  ['s3://bucket/run?region=r&endpoint=host:9000', 'not the address of a server'],
  ['s3://bucket/run?endpoint=http://me:hunter2@host', 'not the address of a server'],
  ['s3://me:hunter2@bucket/run?region=r', 'holds credentials'],
])('refuses %j: %s', async (location, message) => {
  const failure: unknown = await openWeightStore(location).catch((error: unknown) => error);
  expect(failure).toMatchObject({ code: 'invalid-config', message: expect.stringContaining(message) });
  expect(String(failure)).not.toContain('hunter2');
});

it('leaves a folder that is only read as it is, and says when there is none', async () => {
  const store = await openWeightStore(root, { isReader: true });
  expect(await store.list('')).toEqual([]);
  expect(await store.readPointer('latest')).toBeUndefined();
  await expect(openWeightStore(join(root, 'none'), { isReader: true })).rejects.toMatchObject({
    code: 'store-failed',
    message: expect.stringContaining(join(root, 'none')),
  });
  expect(await readdir(root)).toEqual([]);
});

it('refuses a prefix that could not be part of a key', async () => {
  await expect(openWeightStore('s3://bucket/.hidden/x?region=r')).rejects.toMatchObject({ code: 'store-failed' });
});

it('takes the region and the endpoint from the location first, then from the environment', () => {
  const environment = { AWS_REGION: 'eu-north-1', AWS_ENDPOINT_URL: 'http://127.0.0.1:9000' };
  expect(
    parseS3Location('s3://bucket/a/b/?region=eu-west-1&endpoint=https://host&pathStyle=true', environment),
  ).toEqual({
    bucket: 'bucket',
    prefix: 'a/b/',
    region: 'eu-west-1',
    endpoint: 'https://host',
    isPathStyle: true,
  });
  expect(parseS3Location('s3://bucket', environment)).toEqual({
    bucket: 'bucket',
    prefix: '',
    region: 'eu-north-1',
    endpoint: 'http://127.0.0.1:9000',
    isPathStyle: false,
  });
});

it('says that there are no credentials, where there are none', async () => {
  const script = `
    import { openWeightStore } from ${JSON.stringify(new URL('./open-weight-store.ts', import.meta.url).href)};
    const store = await openWeightStore('s3://bucket/run?region=eu-west-1&endpoint=http://127.0.0.1:9', {});
    await store.readPointer('latest').catch((error) => console.log(error.code, error.message, error.cure));`;
  // The client's own chain looks at the environment of the process and at the home folder.
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], {
    env: { HOME: root, AWS_EC2_METADATA_DISABLED: 'true' },
  });
  expect(stdout).toMatch(
    /^store-denied Could not read pointer latest at s3:\/\/bucket\/run: there are no credentials\./,
  );
  expect(stdout).toContain('AWS_ACCESS_KEY_ID');
});
