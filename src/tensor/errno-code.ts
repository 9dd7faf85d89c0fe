/** The system's short name of a failure of files, sockets or processes: what a caller may branch on. */

/** `ENOENT`, `ENOSPC` and the like, or undefined when the failure has none. */
export function errnoCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** No room on the disk, or none that this user may take. */
export function isDiskFull(error: unknown): boolean {
  return errnoCode(error) === 'ENOSPC' || errnoCode(error) === 'EDQUOT';
}
