// The list of a run's conversations: filter, chips, histogram, table.
import { type JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { NumberValues, type Rows } from "../columns";
import { Masks, parseFilter, type Term, withTerms, wordTerms } from "../filter";
import { reason } from "../load";
import type { ColumnView, RunPage, SearchHit } from "../model";
import { href, type Place, setQuery } from "../router";
import { useRows } from "../rows";
import { Text } from "../text";
import { transport } from "../transport";
import { ConversationTable } from "./conversation_table";
import { Facets, facetsOf } from "./facets";
import { FilterField } from "./filter_field";
import { type Bins, binsOf, Histogram, rangeTerms } from "./histogram";

/** What the reader chose is part of the address: `f` filter, `s` order, `b` the number of the histogram, `all` columns. */
export function Conversations({ place, page }: { place: Place; page: RunPage }): JSX.Element {
  const { rows, version, isLoading, error, open } = useRows(place.run);
  const masks = useRef(new Masks());
  const { f: text = "", s: order = "number", b = "", all = "" } = place.query;
  const filter = useMemo(() => parseFilter(text, page.columns), [text, page.columns]);
  const chosen = useMemo(() => masks.current.chosen(rows, filter.terms), [rows, version, filter]);
  const facets = useMemo(
    () => facetsOf(rows, page.columns, filter.terms, chosen, masks.current),
    [rows, version, filter, chosen],
  );
  const [sortedBy, isDescending] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const sorted = useMemo(() => rows.sorted(chosen, sortedBy, isDescending), [rows, chosen, order]);
  const columns = shownColumns(page, rows, all !== "");
  // A run without a summary does not say how many have ended before it is read.
  const total = page.done > rows.count ? page.done : page.planned;
  return (
    <section class="conversations" aria-labelledby="conversations-title">
      <div class="toolbar">
        <h2 id="conversations-title">Conversations</h2>
        <FilterField text={text} error={filter.error} onChange={(f) => setQuery({ f })} />
        <span class="count" role="status">
          {chosen.length === rows.count ? "" : `${chosen.length.toLocaleString("en")} of `}
          {rows.count.toLocaleString("en")}
        </span>
        {page.is_reading && rows.count < total && (
          <span class="quiet" role="status">
            reading {rows.count.toLocaleString("en")} of {total.toLocaleString("en")}…
          </span>
        )}
        <Options place={place} page={page} terms={filter.terms} all={all} />
      </div>
      <div class="narrow">
        <Facets
          facets={facets}
          terms={filter.terms}
          onChoose={(column, words) => setQuery({ f: withTerms(text, column, wordTerms(column, words)) })}
        />
        <Spread rows={rows} page={page} chosen={chosen} column={b} terms={filter.terms} text={text} />
      </div>
      {page.is_live && open.length > 0 && <OpenNow run={place.run} numbers={open} />}
      <TextSearch place={place} terms={filter.terms} />
      {error ? (
        <p class="state-line bad" role="alert">
          {error}
        </p>
      ) : isLoading ? (
        <p class="state-line quiet">Loading the conversations…</p>
      ) : rows.count === 0 && (page.is_reading || page.done > 0) ? (
        <p class="state-line quiet">Reading the conversations…</p>
      ) : rows.count === 0 ? (
        <p class="state-line quiet">
          {page.is_live ? "No conversation has ended yet. Each appears here when it ends." : "No conversation has ended in this run."}
        </p>
      ) : chosen.length === 0 ? (
        <p class="state-line quiet">
          No conversation meets the filter.{" "}
          <button type="button" onClick={() => setQuery({ f: "" })}>
            Remove the filter
          </button>
        </p>
      ) : (
        <ConversationTable
          run={place.run}
          rows={rows}
          sorted={sorted}
          columns={columns}
          sortedBy={sortedBy}
          isDescending={isDescending}
          onSort={(s) => setQuery({ s: s === "number" ? "" : s })}
        />
      )}
    </section>
  );
}

function shownColumns(page: RunPage, rows: Rows, isAll: boolean): readonly ColumnView[] {
  return page.columns.filter(
    ({ name, is_listed }) => isAll || (is_listed !== false && (name !== "failure" || page.failed > 0) && rows.column(name)),
  );
}

function Options(props: { place: Place; page: RunPage; terms: readonly Term[]; all: string }): JSX.Element {
  const { place, page } = props;
  const hasMore = page.columns.some(({ is_listed }) => is_listed === false);
  return (
    <span class="options">
      {hasMore && (
        <button type="button" aria-pressed={props.all !== ""} onClick={() => setQuery({ all: props.all ? "" : "1" })}>
          All columns
        </button>
      )}
      {page.environment === "discussion" && (
        <a class="button" href={href({ run: place.run, page: "flow", query: { only: place.query["f"] ?? "" } })}>
          Flow of answers
        </a>
      )}
    </span>
  );
}

function OpenNow({ run, numbers }: { run: string; numbers: readonly number[] }): JSX.Element {
  return (
    <p class="open-now">
      <span class="quiet">At work:</span>
      {numbers.map((number) => (
        <a href={href({ run, page: "c", names: [String(number)] })}>{number}</a>
      ))}
    </p>
  );
}

/** The histogram of a number, chosen among those that differ between conversations. */
function Spread(props: {
  rows: Rows;
  page: RunPage;
  chosen: Int32Array;
  column: string;
  terms: readonly Term[];
  text: string;
}): JSX.Element | null {
  const { rows, chosen, terms } = props;
  const numbers = useMemo(() => spreadColumns(rows, props.page.columns), [rows, rows.version, props.page.columns]);
  const column = numbers.includes(props.column) ? props.column : (numbers[0] ?? "");
  const bins = useMemo(() => binsOf(rows, column, chosen), [rows, rows.version, column, chosen]);
  if (!bins) return null;
  return (
    <div class="spread">
      <label>
        <span class="hidden-text">Histogram of </span>
        <select value={column} onChange={(event) => setQuery({ b: event.currentTarget.value })}>
          {numbers.map((name) => (
            <option value={name}>{name}</option>
          ))}
        </select>
      </label>
      <Histogram
        column={column}
        bins={bins}
        range={rangeOf(terms, column, bins)}
        onRange={(from, to) => setQuery({ f: withTerms(props.text, column, rangeTerms(column, bins, from, to)) })}
      />
    </div>
  );
}

function spreadColumns(rows: Rows, columns: readonly ColumnView[]): string[] {
  const found = columns.filter(({ name, kind }) => {
    const values = rows.column(name);
    if (kind !== "number" || name === "number" || !(values instanceof NumberValues)) return false;
    const first = values.values.find((value) => !Number.isNaN(value));
    return values.values.some((value) => !Number.isNaN(value) && value !== first);
  });
  return found.map(({ name }) => name);
}

/** The first and the last bin that the filter leaves of a column. */
function rangeOf(terms: readonly Term[], column: string, bins: Bins): [number, number] {
  let [low, high] = [-Infinity, Infinity];
  const step = bins.isWhole ? 1 : 0;
  for (const { column: name, comparison, wanted } of terms) {
    if (name !== column || wanted.length !== 1) continue;
    const limit = Number(wanted[0]);
    if (comparison === ">") low = Math.max(low, limit + step);
    if (comparison === ">=") low = Math.max(low, limit);
    if (comparison === "<=" ) high = Math.min(high, limit);
    if (comparison === "<") high = Math.min(high, bins.isWhole ? limit - 1 : limit - Math.abs(limit) * 1e-12 - 1e-300);
    if (comparison === "=" || comparison === ":") [low, high] = [limit, limit];
  }
  const last = bins.all.length - 1;
  const from = bins.bounds.findLastIndex((bound) => bound <= low);
  const to = bins.bounds.findLastIndex((bound) => bound <= high);
  return [Math.max(0, Math.min(from, last)), Math.max(0, Math.min(to, last))];
}

/** What was found so far; `next` is where the search goes on. */
interface Found {
  readonly words: string;
  readonly hits: readonly SearchHit[];
  readonly left: number;
  readonly next: number | null;
  readonly error: string;
}

/** Looks for the words of a filter in what was said; the server does that. */
function TextSearch({ place, terms }: { place: Place; terms: readonly Term[] }): JSX.Element | null {
  const words = terms.filter(({ column }) => column === "").flatMap(({ wanted }) => wanted).join(" ");
  const [last, setFound] = useState<Found | null>(null);
  const [isBusy, setBusy] = useState(false);
  const leaving = useRef(new AbortController());
  useEffect(() => () => leaving.current.abort(), [words]);
  if (!words || !transport.isServed) return null;
  const found = last?.words === words ? last : null;
  const look = async (): Promise<void> => {
    leaving.current = new AbortController();
    setBusy(true);
    const hits = found?.hits ?? [];
    try {
      const page = await transport.search(place.run, words, found?.next ?? 0, leaving.current.signal);
      const left = page.total - page.searched;
      setFound({ words, hits: [...hits, ...page.hits], left, next: page.next ?? null, error: "" });
    } catch (fault) {
      if (!leaving.current.signal.aborted) setFound({ words, hits, left: 0, next: found?.next ?? null, error: reason(fault) });
    }
    setBusy(false);
  };
  return (
    <div class="search">
      {(!found || found.next !== null || found.error) && (
        <button type="button" disabled={isBusy} onClick={() => void look()}>
          {isBusy ? "Searching…" : found ? `Search the other ${found.left} too` : "Search what was said for "}
          {!isBusy && !found && <Text text={`“${words}”`} />}
        </button>
      )}
      {found?.error && <span class="bad">{found.error}</span>}
      {found && !found.error && found.hits.length === 0 && <span class="quiet">Nobody said that.</span>}
      {found && found.hits.length > 0 && (
        <ul class="hits">
          {found.hits.map((hit) => (
            <li>
              <a href={href({ run: place.run, page: "c", names: [String(hit.n)] })}>{hit.n}</a> <Text text={hit.text} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
