// The tables of a conversation: matrices as small squares, rounds as stances with arrows, lists that sort.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Arrow, Cell, TableRow, ViewTable } from "../model";
import { printable, Text } from "../text";
import { toneSign } from "./scene";

type HrefOf = (place: number) => string;

interface TableProps {
  readonly table: ViewTable;
  readonly hrefOf: HrefOf;
  /** Whether the note is left out, since another table says the same. */
  readonly isBare?: boolean;
}

/** A table in the way its kind is drawn. */
export function TableView({ table, hrefOf, isBare = false }: TableProps) {
  const id = `table-${table.name}`;
  return (
    <section class={`table-view ${table.kind}`} aria-labelledby={id}>
      <h2 id={id}>
        <Text text={table.title} />
      </h2>
      {table.rows.length === 0 ? (
        <p class="empty">Nothing yet.</p>
      ) : table.kind === "list" ? (
        <ListTable table={table} hrefOf={hrefOf} />
      ) : table.kind === "rounds" ? (
        <RoundsTable table={table} hrefOf={hrefOf} />
      ) : (
        <GridTable table={table} hrefOf={hrefOf} />
      )}
      {!isBare && <Legend table={table} />}
      {table.note && !isBare && (
        <p class="quiet">
          <Text text={table.note} />
        </p>
      )}
    </section>
  );
}

interface CellProps {
  readonly cell: Cell;
  readonly hrefOf: HrefOf;
  /** Whether a verdict is written out, or is a sign with its words in the title. */
  readonly isWordy?: boolean;
}

/** The text of a cell in its tone, a link where it has an event. */
function CellText({ cell, hrefOf, isWordy = false }: CellProps) {
  const classes = `cell-text tone-${cell.tone ?? "plain"}`;
  const title = printable([cell.title, cell.verdict].filter(Boolean).join(": ")) || undefined;
  const content = (
    <>
      <Text text={cell.text} />
      {cell.verdict && <Verdict cell={cell} isWordy={isWordy} />}
    </>
  );
  if (cell.event == null || !cell.text)
    return (
      <span class={classes} title={title}>
        {content}
      </span>
    );
  return (
    <a class={classes} href={hrefOf(cell.event)} title={title}>
      {content}
    </a>
  );
}

/** A verdict by its sign, so that it is read without its colour. */
function Verdict({ cell, isWordy }: { readonly cell: Cell; readonly isWordy: boolean }) {
  const sign = toneSign(cell.tone);
  const words = printable(cell.verdict ?? "");
  if (isWordy || !sign) return <span class="verdict">{` ${sign} ${words}`}</span>;
  return (
    <span class="verdict">
      {" "}
      <span aria-hidden="true">{sign}</span>
      <span class="hidden-text">{words}</span>
    </span>
  );
}

/** What the signs of a table mean. */
function Legend({ table }: { readonly table: ViewTable }) {
  const signs = new Map<string, string>();
  for (const row of table.rows)
    for (const cell of row.cells) if (cell.verdict && toneSign(cell.tone)) signs.set(cell.verdict, toneSign(cell.tone));
  if (signs.size === 0 || table.kind === "list") return null;
  return <p class="quiet">{[...signs].map(([words, sign]) => `${sign} ${printable(words)}`).join(" · ")}</p>;
}

function HeadRow({ table, hrefOf }: TableProps) {
  return (
    <tr>
      <th scope="col" class="corner">
        <Text text={table.corner} />
      </th>
      {table.heads.map((head, column) => (
        <th scope="col" key={column}>
          <CellText cell={head} hrefOf={hrefOf} />
        </th>
      ))}
    </tr>
  );
}

function Row(props: { readonly row: TableRow; readonly hrefOf: HrefOf; readonly isWordy?: boolean }) {
  const { row, hrefOf, isWordy } = props;
  return (
    <tr>
      <th scope="row">
        <CellText cell={row.head} hrefOf={hrefOf} />
      </th>
      {row.cells.map((cell, column) => (
        <td key={column} class={`cell back-${cell.tone ?? "plain"}`}>
          <CellText cell={cell} hrefOf={hrefOf} isWordy={isWordy ?? false} />
        </td>
      ))}
    </tr>
  );
}

/** A matrix, or the stances of rounds: every cell a small box. */
function GridTable({ table, hrefOf }: TableProps) {
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label={printable(table.title)}>
      <table>
        <thead>
          <HeadRow table={table} hrefOf={hrefOf} />
        </thead>
        <tbody>
          {table.rows.map((row, number) => (
            <Row key={number} row={row} hrefOf={hrefOf} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface Line {
  readonly path: string;
  readonly text: string;
}

/** The stances of rounds with arrows over them. */
function RoundsTable({ table, hrefOf }: TableProps) {
  const box = useRef<HTMLDivElement>(null);
  const [lines, setLines] = useState<readonly Line[]>([]);
  const arrows = table.arrows ?? [];
  useLayoutEffect(() => {
    const host = box.current;
    if (!host || arrows.length === 0) return undefined;
    const draw = () => setLines(arrows.flatMap((arrow) => lineOf(host, arrow)));
    draw();
    const watch = new ResizeObserver(draw);
    watch.observe(host);
    return () => watch.disconnect();
  }, [table]);
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label={printable(table.title)}>
      <div class="rounds-box" ref={box}>
        <table>
          <thead>
            <HeadRow table={table} hrefOf={hrefOf} />
          </thead>
          <tbody>
            {table.rows.map((row, number) => (
              <Row key={number} row={row} hrefOf={hrefOf} />
            ))}
          </tbody>
        </table>
        {lines.length > 0 && (
          <svg class="arrows" aria-hidden="true">
            <defs>
              <marker id="arrow-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                <path d="M0,0 L8,4 L0,8 z" />
              </marker>
            </defs>
            {lines.map((line, number) => (
              <path key={number} class="arrow" d={line.path} marker-end="url(#arrow-head)">
                <title>{printable(line.text)}</title>
              </path>
            ))}
          </svg>
        )}
      </div>
      {arrows.length > 0 && <ArrowList table={table} arrows={arrows} />}
    </div>
  );
}

/** The arrows in words, for those who do not see them. */
function ArrowList({ table, arrows }: { readonly table: ViewTable; readonly arrows: readonly Arrow[] }) {
  return (
    <details class="arrow-list">
      <summary>
        {arrows.length} {arrows.length === 1 ? "change" : "changes"} after reading another (arrows)
      </summary>
      <ul>
        {arrows.map((arrow, number) => (
          <li key={number}>
            <Text text={arrow.text || arrowWords(table, arrow)} />
          </li>
        ))}
      </ul>
    </details>
  );
}

function arrowWords(table: ViewTable, arrow: Arrow): string {
  const from = table.rows[arrow.from_row]?.head.text ?? "?";
  const to = table.rows[arrow.to_row]?.head.text ?? "?";
  return `${to} changed after reading ${from} (${table.heads[arrow.to_column]?.text ?? "?"})`;
}

function lineOf(host: HTMLElement, arrow: Arrow): readonly Line[] {
  const from = stanceBox(host, arrow.from_row, arrow.from_column);
  const to = stanceBox(host, arrow.to_row, arrow.to_column);
  if (!from || !to) return [];
  const [x1, y1] = [from.right, (from.top + from.bottom) / 2];
  const [x2, y2] = [to.left - 1, (to.top + to.bottom) / 2];
  const bend = Math.max(12, (x2 - x1) / 2);
  return [{ path: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`, text: arrow.text ?? "" }];
}

function stanceBox(host: HTMLElement, row: number, column: number) {
  const cell = host.querySelector("tbody")?.children[row]?.children[column + 1]?.firstElementChild;
  if (!cell) return null;
  const origin = host.getBoundingClientRect();
  const box = cell.getBoundingClientRect();
  return {
    left: box.left - origin.left,
    right: box.right - origin.left,
    top: box.top - origin.top,
    bottom: box.bottom - origin.top,
  };
}

/** A plain table; a click on a head sorts by it, another turns the order round. */
function ListTable({ table, hrefOf }: TableProps) {
  const [order, setOrder] = useState<{ readonly column: number; readonly down: boolean } | null>(null);
  const rows = order ? sorted(table.rows, order.column, order.down) : table.rows;
  const heads: readonly Cell[] = [{ text: table.corner }, ...table.heads];
  const turn = (column: number) =>
    setOrder(order?.column === column ? (order.down ? null : { column, down: true }) : { column, down: false });
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label={printable(table.title)}>
      <table>
        <thead>
          <tr>
            {heads.map((head, column) => (
              <th scope="col" key={column} aria-sort={sortWord(order, column)}>
                <button type="button" class="sort" onClick={() => turn(column)} title={printable(head.title ?? "") || undefined}>
                  <Text text={head.text} />
                  <span aria-hidden="true">{order?.column === column ? (order.down ? " ▾" : " ▴") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, number) => (
            <Row key={number} row={row} hrefOf={hrefOf} isWordy />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function sortWord(order: { readonly column: number; readonly down: boolean } | null, column: number) {
  if (order?.column !== column) return undefined;
  return order.down ? "descending" : "ascending";
}

function sorted(rows: readonly TableRow[], column: number, down: boolean): readonly TableRow[] {
  const words = new Intl.Collator("en", { numeric: true });
  const text = (row: TableRow) => (column === 0 ? row.head.text : (row.cells[column - 1]?.text ?? ""));
  const list = [...rows].sort((one, other) => words.compare(text(one), text(other)));
  return down ? list.reverse() : list;
}
