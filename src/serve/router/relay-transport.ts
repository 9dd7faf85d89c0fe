/**
 * Tokens by the relay of the router in this process: no socket between a hosted recorder and the choice of a replica.
 */
import { decodeGenerateRequest } from '../wire/generate-request.ts';
import { HoneError } from '../../domain/errors.ts';
import type {
  AnswerReceiver,
  GenerateCall,
  GenerateInFlight,
  GenerateTransport,
  ServedModel,
} from './generate-transport.ts';
import type { Relay } from './relay.ts';

export class RelayTransport implements GenerateTransport {
  readonly routers = 1;
  readonly #relay: Relay;

  constructor(relay: Relay) {
    this.#relay = relay;
  }

  send(call: GenerateCall, receiver: AnswerReceiver): GenerateInFlight {
    return this.#relay.send(call, call.decoded ?? decodeGenerateRequest(call.body), receiver);
  }

  known(): { version: number | undefined; contextLength: number | undefined } {
    const { registry } = this.#relay.options;
    return { version: registry.newestVersion(), contextLength: registry.contextLength() };
  }

  servedModels(): readonly ServedModel[] {
    return this.#relay.options.registry.servedModels();
  }

  refresh(): Promise<void> {
    if (this.known().contextLength !== undefined) return Promise.resolve();
    return Promise.reject(
      new HoneError('no-replica', 'No replica serves now.', { cure: 'Start replicas with --router of this router.' }),
    );
  }

  /** The relay ends with its router. */
  close(): Promise<void> {
    return Promise.resolve();
  }
}
