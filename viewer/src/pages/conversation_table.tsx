// The table of conversations: only the rows in view are drawn, however many there are.
import { type JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Rows } from "../columns";
import { useKeys } from "../keys";
import type { ColumnView } from "../model";
import { go, href, type Place } from "../router";
import { Text } from "../text";
import { useWindow } from "../virtual";

const ROW = 24;
const HEAD = 28;
const MEASURED = 300;
const CHARS_MAX = 34;

export function ConversationTable(props: {
  run: string;
  rows: Rows;
  sorted: Int32Array;
  columns: readonly ColumnView[];
  sortedBy: string;
  isDescending: boolean;
  /** With the column to sort by, `-` before it for descending. */
  onSort: (order: string) => void;
}): JSX.Element {
  const { run, rows, sorted, columns } = props;
  const [cursor, setCursor] = useState(-1);
  const { ref, first, last, before, after, show } = useWindow(sorted.length, ROW, HEAD);
  const widths = useMemo(() => measured(rows, columns), [rows, columns.map(({ name }) => name).join(), rows.count]);
  const move = (by: number): void => {
    const next = Math.max(0, Math.min(sorted.length - 1, cursor + by));
    setCursor(next);
    show(next);
  };
  const open = (): void => {
    const row = sorted[cursor];
    if (row !== undefined) go(conversation(run, rows, row));
  };
  useEffect(() => setCursor((at) => Math.min(at, sorted.length - 1)), [sorted.length]);
  // From the opening of the page to its first rows; a browser's tools show it.
  useEffect(() => void performance.measure("rows", { start: 0 }), []);
  useKeys([
    { key: "j", text: "next row", run: () => move(1) },
    { key: "k", text: "previous row", run: () => move(-1) },
    { key: "Enter", text: "open the row", run: open },
  ]);
  const drawn = Array.from({ length: last - first }, (_, place) => first + place);
  return (
    <div class="rows" ref={ref} tabIndex={0} role="region" aria-label="Table of conversations">
      <table aria-rowcount={sorted.length + 1}>
        <caption class="hidden-text">Conversations, sorted by {props.sortedBy}</caption>
        <colgroup>
          {widths.map((width) => (
            <col style={{ width: `calc(${width}ch + 18px)` }} />
          ))}
          <col />
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <Head column={column} sortedBy={props.sortedBy} isDescending={props.isDescending} onSort={props.onSort} />
            ))}
            <td />
          </tr>
        </thead>
        <tbody>
          <tr class="space" aria-hidden="true" style={{ height: `${before}px` }} />
          {drawn.map((place) => (
            <Row key={place} run={run} rows={rows} columns={columns} row={sorted[place]!} place={place} isCursor={place === cursor} />
          ))}
          <tr class="space" aria-hidden="true" style={{ height: `${after}px` }} />
        </tbody>
      </table>
    </div>
  );
}

function conversation(run: string, rows: Rows, row: number): Partial<Place> {
  return { run, page: "c", names: [String(rows.number("number", row))] };
}

function Head(props: {
  column: ColumnView;
  sortedBy: string;
  isDescending: boolean;
  onSort: (order: string) => void;
}): JSX.Element {
  const { name, kind } = props.column;
  const isSorted = props.sortedBy === name;
  const order = isSorted ? (props.isDescending ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={kind === "number" ? "num" : ""} aria-sort={order}>
      <button type="button" onClick={() => props.onSort(isSorted && !props.isDescending ? `-${name}` : name)}>
        {name}
        <span class="arrow" aria-hidden="true">
          {isSorted ? (props.isDescending ? "▼" : "▲") : ""}
        </span>
      </button>
    </th>
  );
}

function Row(props: {
  run: string;
  rows: Rows;
  columns: readonly ColumnView[];
  row: number;
  place: number;
  isCursor: boolean;
}): JSX.Element {
  const { run, rows, row, place } = props;
  const target = conversation(run, rows, row);
  return (
    <tr
      class={`${place % 2 ? "odd" : ""} ${props.isCursor ? "cursor" : ""}`}
      aria-rowindex={place + 2}
      onClick={(event) => {
        if (!(event.target instanceof HTMLAnchorElement) && !window.getSelection()?.toString()) go(target);
      }}
    >
      {props.columns.map((column) => {
        const text = shown(rows, column, row);
        if (column.name === "number") {
          return (
            <th scope="row" class="num">
              <a href={href(target)}>{text}</a>
            </th>
          );
        }
        const isBad = column.name === "failure" || (column.name === "status" && text === "failed");
        return (
          <td class={`${column.kind === "number" ? "num" : ""} ${isBad ? "bad" : ""}`} title={text.length > CHARS_MAX ? text : undefined}>
            {text ? <Text text={text} /> : <span class="quiet">–</span>}
          </td>
        );
      })}
      <td />
    </tr>
  );
}

/** Widths in characters from the heads, the extremes of numbers and the first words, so that columns keep their places. */
function measured(rows: Rows, columns: readonly ColumnView[]): number[] {
  return columns.map((column) => {
    let chars = column.name.length + 2;
    for (const row of rows.widest(column.name, MEASURED)) chars = Math.max(chars, shown(rows, column, row).length);
    return Math.min(chars, CHARS_MAX);
  });
}

const grouped = new Intl.NumberFormat("en", { maximumSignificantDigits: 15 });

/** A cell as the table shows it: large numbers with separators, but not the number of a conversation. */
function shown(rows: Rows, column: ColumnView, row: number): string {
  const text = rows.text(column, row);
  const isGrouped = column.kind === "number" && column.name !== "number" && text.length > 4;
  return isGrouped && !text.includes("e") ? grouped.format(Number(text)) : text;
}
