/**
 * The check harness: finds bugs in a change by talking to a model behind an OpenAI-compatible base URL. Two strategies,
 * one submission format. It knows nothing of training; the same harness runs in production, evaluation and rollouts.
 */
import type { PackageIndex } from '../../code/package-index.ts';
import type { Submission } from '../../domain/finding.ts';
import type { Harness, HarnessContext } from '../../domain/harness.ts';
import type { Task } from '../../domain/task.ts';
import { ChatClient, createConnections } from './chat-client.ts';
import { runReport } from './report.ts';
import { runSweep } from './sweep.ts';
import { Workspace } from './workspace.ts';

/** A package as a reviewer may see it: its folder and the index of its declarations. */
export interface PackageView {
  readonly directory: string;
  readonly index: Pick<PackageIndex, 'lookUp'>;
}

export interface CheckHarnessOptions {
  /** `sweep` asks about each changed line (small models); `report` asks once for all findings (large models). */
  readonly strategy: 'report' | 'sweep';
  readonly lookups: 'on' | 'off';
  /** Called once an episode, and not at all when look-ups are off. */
  readonly openPackage: (name: string) => Promise<PackageView>;
  /** Sweep: declarations that may be shown for one changed line, and for the whole task where the budget names no number. */
  readonly lookupsPerLine?: number;
  readonly lookupsPerTask?: number;
  /** Sweep: explain the format first, for models that were not trained on it. */
  readonly instructions?: 'on' | 'off';
}

export function createCheckHarness({
  strategy,
  lookups,
  openPackage,
  lookupsPerLine = 2,
  lookupsPerTask = 6,
  instructions = 'off',
}: CheckHarnessOptions): Harness {
  const connections = createConnections();
  return {
    name: `check-${strategy}${lookups === 'off' ? '-without-lookups' : ''}`,
    run: async (environment: Task['environment'], context: HarnessContext): Promise<Submission> => {
      const view = lookups === 'on' ? await openPackage(environment.package) : undefined;
      const client = new ChatClient(context, connections);
      switch (strategy) {
        case 'sweep':
          return runSweep(environment, client, {
            index: view?.index,
            lookupsPerLine,
            lookupsPerTask: context.budget.maxLookups ?? lookupsPerTask,
            withInstructions: instructions === 'on',
            effort: context.effort,
          });
        case 'report':
          return runReport(environment, client, {
            around:
              view === undefined
                ? undefined
                : { index: view.index, workspace: await Workspace.open(view.directory, environment) },
            maxLookups: context.budget.maxLookups ?? Number.POSITIVE_INFINITY,
            effort: context.effort,
          });
        default:
          return strategy satisfies never;
      }
    },
  };
}
