// Two combinations of a grid side by side: conversations of the same number have the same seed.
import { type JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Rows } from "../columns";
import { useLoaded } from "../load";
import type { ColumnView, CombinationView, RunPage } from "../model";
import { href, type Place, setQuery } from "../router";
import { Text } from "../text";
import { transport } from "../transport";
import { useWindow } from "../virtual";

const ROW = 24;
const HEAD = 28;

interface Pair {
  readonly number: number;
  readonly left: string;
  readonly right: string;
}

/** Which two are chosen is part of the address: `left`, `right`, and the column `c`. */
export function Pairs({ place, combinations }: { place: Place; combinations: readonly CombinationView[] }): JSX.Element {
  const { left = "", right = "", c = "" } = place.query;
  const slugs = combinations.map(({ slug }) => slug);
  const isChosen = slugs.includes(left) && slugs.includes(right) && left !== right;
  return (
    <section class="pairs" aria-labelledby="pairs-title">
      <h2 id="pairs-title">Side by side</h2>
      <p class="pairs-choice">
        <Choice label="Left" value={left} slugs={slugs} onChange={(slug) => setQuery({ left: slug })} />
        <Choice label="Right" value={right} slugs={slugs} onChange={(slug) => setQuery({ right: slug })} />
      </p>
      {isChosen && <PairTable key={`${left} ${right}`} left={left} right={right} name={c} />}
    </section>
  );
}

function Choice(props: { label: string; value: string; slugs: readonly string[]; onChange: (slug: string) => void }): JSX.Element {
  return (
    <label>
      {props.label}{" "}
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        <option value="">choose a combination</option>
        {props.slugs.map((slug) => (
          <option value={slug}>{slug}</option>
        ))}
      </select>
    </label>
  );
}

async function load(slug: string): Promise<{ page: RunPage; rows: Rows }> {
  const [page, columns] = await Promise.all([transport.run(slug), transport.index(slug, 0, 0)]);
  const rows = new Rows();
  rows.append(columns);
  return { page, rows };
}

function PairTable({ left, right, name }: { left: string; right: string; name: string }): JSX.Element {
  const loaded = useLoaded(() => Promise.all([load(left), load(right)]), [left, right]);
  const columns = useMemo(() => shared(loaded.value?.map(({ page }) => page) ?? []), [loaded.value]);
  const column = columns.find((one) => one.name === name) ?? columns.find(({ name: one }) => one !== "status") ?? columns[0];
  const pairs = useMemo(
    () => (loaded.value && column ? paired(loaded.value[0].rows, loaded.value[1].rows, column) : []),
    [loaded.value, column],
  );
  const { ref, first, last, before, after } = useWindow(pairs.length, ROW, HEAD);
  if (loaded.error) return <p class="state-line bad">{loaded.error}</p>;
  if (!loaded.value || !column) return <p class="state-line quiet">Loading the conversations…</p>;
  const equal = pairs.filter((pair) => pair.left === pair.right).length;
  return (
    <>
      <p>
        <label>
          Column{" "}
          <select value={column.name} onChange={(event) => setQuery({ c: event.currentTarget.value })}>
            {columns.map((one) => (
              <option value={one.name}>{one.name}</option>
            ))}
          </select>
        </label>{" "}
        {pairs.length.toLocaleString("en")} pairs of one seed; equal in <b>{equal.toLocaleString("en")}</b>.
      </p>
      <div class="rows" ref={ref} tabIndex={0} role="region" aria-label="Table of pairs">
        <table aria-rowcount={pairs.length + 1}>
          <colgroup>
            <col style={{ width: "12ch" }} />
            <col />
            <col />
            <col style={{ width: "14ch" }} />
          </colgroup>
          <thead>
            <tr>
              <th scope="col" class="head-text num">number</th>
              <th scope="col" class="head-text">
                <Text text={left} />
              </th>
              <th scope="col" class="head-text">
                <Text text={right} />
              </th>
              <th scope="col" class="head-text">both</th>
            </tr>
          </thead>
          <tbody>
            <tr class="space" aria-hidden="true" style={{ height: `${before}px` }} />
            {pairs.slice(first, last).map((pair) => (
              <PairRow key={pair.number} pair={pair} left={left} right={right} />
            ))}
            <tr class="space" aria-hidden="true" style={{ height: `${after}px` }} />
          </tbody>
        </table>
      </div>
    </>
  );
}

function PairRow({ pair, left, right }: { pair: Pair; left: string; right: string }): JSX.Element {
  const names = [String(pair.number)];
  const differs = pair.left !== pair.right;
  return (
    <tr class={differs ? "differs" : ""}>
      <th scope="row" class="num">
        {pair.number}
      </th>
      <td>
        <a href={href({ run: left, page: "c", names })}>
          <Text text={pair.left || "–"} />
        </a>
      </td>
      <td>
        <a href={href({ run: right, page: "c", names })}>
          {differs && "≠ "}
          <Text text={pair.right || "–"} />
        </a>
      </td>
      <td>
        <a href={href({ run: left, page: "compare", names: [...names, ...names], query: { other: right } })}>compare</a>
      </td>
    </tr>
  );
}

/** The columns that both have, but for those that name a conversation. */
function shared(pages: readonly RunPage[]): readonly ColumnView[] {
  const [left, right] = pages;
  if (!left || !right) return [];
  const others = new Set(right.columns.map(({ name }) => name));
  return left.columns.filter(({ name }) => others.has(name) && name !== "number" && name !== "id");
}

function paired(left: Rows, right: Rows, column: ColumnView): Pair[] {
  const places = new Map<number, number>();
  for (let row = 0; row < right.count; row += 1) places.set(right.number("number", row), row);
  const pairs: Pair[] = [];
  for (let row = 0; row < left.count; row += 1) {
    const number = left.number("number", row);
    const other = places.get(number);
    if (other !== undefined) pairs.push({ number, left: left.text(column, row), right: right.text(column, other) });
  }
  return pairs.sort((a, b) => a.number - b.number);
}
