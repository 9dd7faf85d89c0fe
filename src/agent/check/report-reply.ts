/**
 * Reading the final report of a large model: the arguments of `submit`, or a JSON message, fenced or bare.
 * Returns findings or one sentence that a model can act on; lines must lie in the file that was shown.
 */
import { z } from 'zod';

import { reportSchema } from '../../domain/finding.ts';
import type { Finding } from '../../domain/finding.ts';

export type ReportReading =
  | { readonly kind: 'findings'; readonly findings: readonly Finding[] }
  | { readonly kind: 'unreadable'; readonly reason: string };

const FENCE = /```(?:json)?[ \t]*\n([\s\S]*?)```/gu;

const unreadable = (reason: string): ReportReading => ({ kind: 'unreadable', reason });

export function readReport(text: string): ReportReading {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // The runtime's own message differs between versions, and this sentence becomes part of a prompt.
    return unreadable('The report is not valid JSON.');
  }
  const parsed = reportSchema.safeParse(value);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    return unreadable(
      `The report does not fit its schema at ${issue?.path.join('.') || 'the top'}: ${issue?.message ?? 'unknown'}.`,
    );
  }
  const backwards = parsed.data.findings.find((finding) => finding.endLine < finding.startLine);
  if (backwards !== undefined)
    return unreadable(`A finding ends on line ${backwards.endLine}, before it starts on line ${backwards.startLine}.`);
  return { kind: 'findings', findings: parsed.data.findings };
}

/** The last fenced block of a message counts; without one, the whole message. */
export function readReportMessage(content: string): ReportReading {
  const fenced = [...content.matchAll(FENCE)].at(-1)?.[1];
  return readReport(fenced ?? content.trim());
}

/** JSON Schema of a report, as the parameters of `submit`. */
export function reportParameters(): object {
  const { $schema: _dialect, ...schema } = z.toJSONSchema(reportSchema, { io: 'input' });
  return schema;
}
