/**
 * The reference that the router's relay is measured against: a proxy on `fetch`, as the web framework that Hone uses for its
 * control ports comes with it. Prints its port as JSON.
 */
import process from 'node:process';

import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { proxy } from 'hono/proxy';

const [, , target] = process.argv;

const app = new Hono();
app.all('*', (context) => proxy(`${target}${context.req.path}`, context.req));
serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, ({ port }) => {
  process.stdout.write(`${JSON.stringify({ url: `http://127.0.0.1:${port}` })}\n`);
});
