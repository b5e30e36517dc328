// The rows of a run while a page shows them: loaded once, then followed.
import { useEffect, useState } from "preact/hooks";
import { Rows } from "./columns";
import { reason } from "./load";
import type { IndexColumns } from "./model";
import { transport } from "./transport";

/** `version` changes whenever rows were added. */
export interface Followed {
  readonly rows: Rows;
  readonly version: number;
  readonly isLoading: boolean;
  readonly error: string;
  /** Conversations with replies of late that have not ended. */
  readonly open: readonly number[];
}

const OPEN_MAX = 12;
const GATHER_MS = 100;
const NOTHING: Followed = { rows: new Rows(), version: 0, isLoading: true, error: "", open: [] };

/** The rows of a run. They are loaded again where rows of before count no more, as after a retry. */
export function useRows(run: string): Followed {
  const [followed, setFollowed] = useState(NOTHING);
  useEffect(() => follow(run, setFollowed), [run]);
  return followed;
}

function follow(run: string, show: (change: (before: Followed) => Followed) => void): () => void {
  let rows = new Rows();
  let open: ReadonlySet<number> = new Set();
  let ended = new Set<number>();
  let isWanted = true;
  let isAsking = false;
  const tell = (error = ""): void => {
    const listed = [...open].sort((a, b) => a - b).slice(0, OPEN_MAX);
    if (isWanted) show(() => ({ rows, version: rows.version, isLoading: false, error, open: listed }));
  };
  // Rows of a long list come in many parts, and each drawing sorts and filters all of them.
  let timer = 0;
  const tellSoon = (): void => {
    timer ||= window.setTimeout(() => {
      timer = 0;
      tell();
    }, GATHER_MS);
  };
  const unended = (numbers: readonly number[]): ReadonlySet<number> => new Set(numbers.filter((one) => !ended.has(one)));
  const take = (columns: IndexColumns): boolean => {
    if (rows.count > 0 && rows.edition !== (columns.version ?? 0)) {
      if (columns.since > 0) return false;
      rows = new Rows();
      ended = new Set();
    }
    const from = rows.count;
    if (!rows.append(columns)) return false;
    for (let row = from; row < rows.count; row += 1) ended.add(rows.number("number", row));
    open = unended([...open]);
    return true;
  };
  const ask = async (): Promise<void> => {
    if (isAsking) return;
    isAsking = true;
    try {
      take(await transport.index(run, rows.count, rows.edition));
      tell();
    } catch (fault) {
      tell(reason(fault));
    } finally {
      isAsking = false;
    }
  };
  show(() => NOTHING);
  void ask();
  const leave = transport.listen(run, {
    rows: (columns) => {
      if (take(columns)) tellSoon();
      else void ask();
    },
    touched: (numbers) => {
      open = unended([...open, ...numbers]);
      tell();
    },
  });
  return () => {
    isWanted = false;
    window.clearTimeout(timer);
    leave();
  };
}
