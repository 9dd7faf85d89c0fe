/**
 * What a cluster's controller and its members say to each other: paths, and the schemas of bodies. JSON for control, frames
 * (object-frames.ts) for bytes. Both sides parse what they get with these schemas; the one invariant is that a key or an id
 * in a path is encoded, so that none can name another route.
 */
import { z } from 'zod';

/** Bytes of an object, at the controller and at every member: `/cluster/objects/<key>?from=<chunk>&to=<chunk>&member=<id>`. */
const OBJECTS_PATH = '/cluster/objects/';
/** `?key=<key>`: size and checksum, which the controller vouches for. */
export const FACTS_PATH = '/cluster/facts';
/** `?key=<key>`: digests of all chunks of an object that the controller has proven. */
export const DIGESTS_PATH = '/cluster/digests';
/** `?after=<serial>&wait=<ms>`: the announced version, at once when the serial is another one, else when it changes or time is up. */
export const POINTER_PATH = '/pointer';
export const MEMBERS_PATH = '/members';
export const WAKE_PATH = '/wake';

const count = z.int().min(0);

/** What a member tells of a version, as it happens. */
export const memberProgressSchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('holding'), runId: z.string().optional(), version: count }),
  z.strictObject({ kind: z.literal('staged'), runId: z.string(), version: count }),
  z.strictObject({ kind: z.literal('committed'), runId: z.string(), version: count, pauseMs: z.number().min(0) }),
]);
export type MemberProgress = z.infer<typeof memberProgressSchema>;

export const relayCountsSchema = z.strictObject({
  receivedBytes: count,
  /** To children. */
  sentBytes: count,
  receivedChunks: count,
  /** Summed over chunks: from the first byte of a chunk until it is verified, on the disk and open to children. */
  hopSeconds: z.number().min(0),
  damagedChunks: count,
});
export type RelayCounts = z.infer<typeof relayCountsSchema>;

const heldSchema = z.strictObject({ runId: z.string().optional(), version: count });

/** A heartbeat; the first one registers. Lists hold what came since the last one that was answered. */
export const heartbeatSchema = z.strictObject({
  id: z.string().min(1).max(200),
  /** Another one means that the process is another one. */
  bootId: z.string().min(1).max(200),
  /** Where children reach it. */
  url: z.url(),
  /** The parent that it uses now; null = the controller; absent = none yet. */
  parent: z.string().nullable().optional(),
  /** Serial of the announcement that was heard last: it is not sent again. */
  heard: z.string().optional(),
  held: heldSchema.optional(),
  progress: z.array(memberProgressSchema).max(1000),
  /** Keys of objects that are here whole and proven. */
  received: z.array(z.string()).max(10_000),
  counts: relayCountsSchema,
});
export type Heartbeat = z.infer<typeof heartbeatSchema>;

const parentSchema = z.strictObject({ id: z.string(), url: z.url() }).nullable();

/** What the controller knows of an object that the announced version needs, with its bytes where they are few. */
const carriedObjectSchema = z.strictObject({
  key: z.string(),
  sizeBytes: count,
  checksum: z.string().nullable(),
  modifiedMs: z.number(),
  base64: z.string().optional(),
});
export type CarriedObject = z.infer<typeof carriedObjectSchema>;

export const announcementSchema = z.strictObject({
  /** Changes with every announcement and every start of the controller. */
  serial: z.string(),
  /** Text of the store's pointer, such as `my-run/weight_v000007`; null while nothing is published. */
  pointer: z.string().nullable(),
  /** The version's index and files, so that a small one needs no further round trip. */
  objects: z.array(carriedObjectSchema),
});
export type Announcement = z.infer<typeof announcementSchema>;

export const heartbeatReplySchema = z.strictObject({
  cluster: z.string(),
  leaseMs: z.number().positive(),
  /** Null = the controller. */
  parent: parentSchema,
  announcement: announcementSchema.nullable(),
});
export type HeartbeatReply = z.infer<typeof heartbeatReplySchema>;

/** Why a member gave up on a parent. */
export const parentFaultSchema = z.enum(['unreachable', 'broken-off', 'stalled', 'damaged', 'refused']);
export type ParentFault = z.infer<typeof parentFaultSchema>;

export const parentReportSchema = z.strictObject({
  parent: z.string(),
  fault: parentFaultSchema,
  key: z.string(),
  chunk: count,
});
export type ParentReport = z.infer<typeof parentReportSchema>;

export const parentReplySchema = z.strictObject({ parent: parentSchema });

export const factsSchema = z.strictObject({
  key: z.string(),
  sizeBytes: count,
  checksum: z.string().nullable(),
  modifiedMs: z.number(),
});

export const digestsSchema = z.strictObject({ digests: z.array(z.string().regex(/^[0-9a-f]{32}$/)) });

export function objectPath(
  key: string,
  range: { readonly start: number; readonly end: number },
  member: string,
): string {
  return `${OBJECTS_PATH}${key}?from=${range.start}&to=${range.end}&member=${encodeURIComponent(member)}`;
}

export interface ObjectRequest {
  readonly key: string;
  readonly start: number;
  readonly end: number;
  readonly member: string;
}

/** Undefined when the path is another route's; `invalid` when it is meant to be this one. */
export function parseObjectPath(url: string | undefined): ObjectRequest | 'invalid' | undefined {
  if (url?.startsWith(OBJECTS_PATH) !== true) return undefined;
  const [path = '', query = ''] = url.split('?');
  const parameters = new URLSearchParams(query);
  const start = Number(parameters.get('from') ?? Number.NaN);
  const end = Number(parameters.get('to') ?? Number.NaN);
  const key = path.slice(OBJECTS_PATH.length);
  const isSound = Number.isSafeInteger(start) && Number.isSafeInteger(end) && start >= 0 && start <= end && key !== '';
  return isSound ? { key, start, end, member: parameters.get('member') ?? '' } : 'invalid';
}
