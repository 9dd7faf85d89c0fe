/**
 * Which replica a request goes to: a pure function of what is known of each. The session's own replica first, as it holds the
 * session's prefix; then the least cost,
 *
 *   cost = load + max(0, load + 1 - slots) + (prompt tokens - tokens in its prefix cache) / 512
 *
 * in requests: those it has, those that this one would wait behind once more, and the prefill, of which 512 tokens weigh as much
 * as one running request. Ties go by a stable hash of request and replica, so that equal replicas share equally.
 * Invariant: no replica is chosen that may not serve, has no room, or is known to serve a version that the request excludes.
 */
import type { HealthState } from './replica-health.ts';

export interface RouteCandidate {
  readonly id: string;
  readonly health: HealthState;
  /** It says of itself that it takes requests, and its breaker lets one through. */
  readonly isOpen: boolean;
  readonly version: number;
  readonly load: number;
  readonly slots: number;
  /** Load at which it takes no more. */
  readonly mostLoad: number;
  /** Tokens of this prompt that its prefix cache holds. */
  readonly cachedTokens: number;
}

export interface RouteRequest {
  /** What ties are broken by. */
  readonly key: string;
  readonly promptTokens: number;
  readonly minVersion?: number | undefined;
  readonly exactVersion?: number | undefined;
  /** Where the session's last request went, and the version that was served there. */
  readonly session?: { readonly replica: string; readonly version: number } | undefined;
  /** Replicas that this request was at already. */
  readonly tried: ReadonlySet<string>;
}

export type RouteChoice =
  /** `isCertain`: it is known to serve a version that the request asks for; else it may have come to one since it said so. */
  | { readonly kind: 'replica'; readonly id: string; readonly isCertain: boolean }
  | { readonly kind: 'full' }
  /** Some serve, and none can serve this version: `newest` is the newest that there is. */
  | { readonly kind: 'version'; readonly newest: number }
  | { readonly kind: 'none' };

const PREFILL_TOKENS_A_REQUEST = 512;

export function routeCost(candidate: RouteCandidate, promptTokens: number): number {
  const { load, slots, cachedTokens } = candidate;
  return load + Math.max(0, load + 1 - slots) + Math.max(0, promptTokens - cachedTokens) / PREFILL_TOKENS_A_REQUEST;
}

export function chooseRoute(candidates: Iterable<RouteCandidate>, request: RouteRequest): RouteChoice {
  const { session } = request;
  let best: RouteCandidate | undefined;
  let hopeful: RouteCandidate | undefined;
  let newest: number | undefined;
  let isFull = false;
  for (const candidate of candidates) {
    const { health } = candidate;
    if ((health !== 'HEALTHY' && health !== 'SUSPECT') || !candidate.isOpen || request.tried.has(candidate.id))
      continue;
    if (newest === undefined || candidate.version > newest) newest = candidate.version;
    const fits = fulfils(candidate.version, request);
    if (fits === 'never') continue;
    if (candidate.load >= candidate.mostLoad) {
      isFull ||= fits === 'now';
      continue;
    }
    if (fits === 'later') {
      if (hopeful === undefined || candidate.version > hopeful.version) hopeful = candidate;
      continue;
    }
    if (candidate.id === session?.replica && health === 'HEALTHY')
      return { kind: 'replica', id: candidate.id, isCertain: true };
    if (best === undefined || isBetter(candidate, best, request)) best = candidate;
  }
  if (best !== undefined) return { kind: 'replica', id: best.id, isCertain: true };
  if (isFull) return { kind: 'full' };
  if (hopeful !== undefined) return { kind: 'replica', id: hopeful.id, isCertain: false };
  return newest === undefined ? { kind: 'none' } : { kind: 'version', newest };
}

function fulfils(version: number, { minVersion, exactVersion }: RouteRequest): 'now' | 'later' | 'never' {
  if (exactVersion !== undefined && version > exactVersion) return 'never';
  return version >= Math.max(minVersion ?? 0, exactVersion ?? 0) ? 'now' : 'later';
}

function isBetter(candidate: RouteCandidate, best: RouteCandidate, request: RouteRequest): boolean {
  if (candidate.health !== best.health) return candidate.health === 'HEALTHY';
  // A session meets no older weights than it has seen, where there is a choice.
  const floor = request.session?.version ?? 0;
  if (candidate.version >= floor !== best.version >= floor) return candidate.version >= floor;
  const difference = routeCost(candidate, request.promptTokens) - routeCost(best, request.promptTokens);
  if (difference !== 0) return difference < 0;
  return tie(request.key, candidate.id) < tie(request.key, best.id);
}

/** 32 bits of both texts, well mixed: FNV-1a with a finish. */
function tie(key: string, id: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < id.length; index++) hash = Math.imul(hash ^ id.charCodeAt(index), 0x01000193);
  for (let index = 0; index < key.length; index++) hash = Math.imul(hash ^ key.charCodeAt(index), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
