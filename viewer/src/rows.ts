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
const NOTHING: Followed = { rows: new Rows(), version: 0, isLoading: true, error: "", open: [] };

/** The rows of a run. They are loaded again from the start where the run had more of them before, as after a retry. */
export function useRows(run: string): Followed {
  const [followed, setFollowed] = useState(NOTHING);
  useEffect(() => follow(run, setFollowed), [run]);
  return followed;
}

function follow(run: string, show: (change: (before: Followed) => Followed) => void): () => void {
  let rows = new Rows();
  let open = new Set<number>();
  let isWanted = true;
  let isAsking = false;
  const tell = (error = ""): void => {
    const listed = [...open].sort((a, b) => a - b).slice(0, OPEN_MAX);
    if (isWanted) show(() => ({ rows, version: rows.version, isLoading: false, error, open: listed }));
  };
  const take = (columns: IndexColumns): boolean => {
    if (!rows.append(columns)) return false;
    if (open.size) for (let row = columns.since; row < rows.count; row += 1) open.delete(rows.number("number", row));
    return true;
  };
  const ask = async (): Promise<void> => {
    if (isAsking) return;
    isAsking = true;
    try {
      take(await transport.index(run, rows.count));
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
      if (columns.since === 0 && columns.rows < rows.count) {
        rows = new Rows();
        open = new Set();
      }
      if (take(columns)) tell();
      else void ask();
    },
    touched: (numbers) => {
      for (const number of numbers) open.add(number);
      tell();
    },
    standing: (page) => {
      if (page.done >= rows.count) return;
      rows = new Rows();
      void ask();
    },
  });
  return () => {
    isWanted = false;
    leave();
  };
}
