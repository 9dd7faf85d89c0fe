/**
 * A TCP link between a client and a server for tests: passes bytes on, and can change, hold or cut what comes back. It owns its sockets;
 * `close` ends all of them.
 */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';

export interface LinkOptions {
  /** Sees the bytes that come back on one connection; what it returns goes on to the client. Awaited, so it can hold the stream. */
  readonly back?: (bytes: Buffer, offset: number) => Buffer | Promise<Buffer>;
}

export interface Link extends AsyncDisposable {
  readonly url: string;
  /** Bytes that came back over all connections. */
  readonly backBytes: number;
  /** Destroys the connections of now; new ones pass. */
  cut(): void;
}

export async function startLink(targetUrl: string, { back = (bytes) => bytes }: LinkOptions = {}): Promise<Link> {
  const target = new URL(targetUrl);
  const sockets = new Set<Socket>();
  let backBytes = 0;
  const server = createServer((client) => {
    const upstream = connect(Number(target.port), target.hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    const ended = new AbortController();
    client.once('close', () => ended.abort());
    client.pipe(upstream);
    const pump = async (): Promise<void> => {
      let offset = 0;
      for await (const bytes of upstream as AsyncIterable<Buffer>) {
        const passed = await back(bytes, offset);
        offset += bytes.byteLength;
        backBytes += bytes.byteLength;
        if (!client.write(passed)) await once(client, 'drain', { signal: ended.signal });
      }
      client.end();
    };
    pump().catch(() => client.destroy());
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  // A listening TCP server's address is never a string or null.
  const { port } = server.address() as AddressInfo;
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  return {
    url: `http://127.0.0.1:${port}`,
    get backBytes() {
      return backBytes;
    },
    cut,
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => server.close(resolve));
      cut();
      await closed;
    },
  };
}
