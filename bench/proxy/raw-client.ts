/**
 * The cheapest client there is, so that what is measured is the server: one socket a connection, requests written as bytes, answers
 * read up to the end of their framing. Invariant: an answer that is not 200 or is cut is an error, never a fast answer.
 */
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { once } from 'node:events';

const LAST_CHUNK = Buffer.from('0\r\n\r\n');

export interface RawRequest {
  readonly path: string;
  readonly body: string;
  readonly token?: string | undefined;
}

export class RawClient {
  readonly #socket: Socket;
  readonly #host: string;

  private constructor(socket: Socket, host: string) {
    this.#socket = socket;
    this.#host = host;
  }

  static async connect(url: string): Promise<RawClient> {
    const { hostname, port, host } = new URL(url);
    const socket = connect({ host: hostname, port: Number(port), noDelay: true });
    await once(socket, 'connect');
    return new RawClient(socket, host);
  }

  /** Sends one request and resolves with the bytes of its answer when it has come whole. */
  ask({ path, body, token }: RawRequest): Promise<number> {
    const socket = this.#socket;
    return new Promise((resolve, reject) => {
      let bytes = 0;
      let head: string | undefined = '';
      let wanted: number | undefined;
      let tail: Buffer = Buffer.alloc(0);
      const done = (error?: Error): void => {
        socket.off('data', onData);
        socket.off('close', onClose);
        if (error === undefined) resolve(bytes);
        else reject(error);
      };
      const onClose = (): void => done(new Error('the connection broke in mid-answer'));
      const onData = (chunk: Buffer): void => {
        bytes += chunk.length;
        if (head !== undefined) {
          head += chunk.toString('latin1');
          const end = head.indexOf('\r\n\r\n');
          if (end < 0) return;
          if (!head.startsWith('HTTP/1.1 200')) return done(new Error(head.slice(0, 600)));
          const length = /content-length: (\d+)/iu.exec(head.slice(0, end))?.[1];
          if (length !== undefined) wanted = end + 4 + Number(length);
          head = undefined;
        }
        if (wanted !== undefined) {
          if (bytes >= wanted) done();
          return;
        }
        tail = chunk.length >= 5 ? chunk.subarray(-5) : Buffer.concat([tail, chunk]).subarray(-5);
        if (tail.equals(LAST_CHUNK)) done();
      };
      socket.on('data', onData);
      socket.once('close', onClose);
      const authorization = token === undefined ? '' : `authorization: Bearer ${token}\r\n`;
      socket.write(
        `POST ${path} HTTP/1.1\r\nhost: ${this.#host}\r\n${authorization}content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
      );
    });
  }

  close(): void {
    this.#socket.destroy();
  }
}
