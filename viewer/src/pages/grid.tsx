// The combinations of a grid: what each is, how far it is, its figures.
import { type JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { CombinationView, RunPage } from "../model";
import { own } from "../load";
import { href, type Place, setQuery } from "../router";
import { printable, Text } from "../text";

interface Column {
  readonly name: string;
  /** Shorter than the name. */
  readonly title?: string;
  readonly isNumber: boolean;
  text(combination: CombinationView): string;
}

export function Combinations(props: { place: Place; page: RunPage; combinations: readonly CombinationView[] }): JSX.Element {
  const { combinations } = props;
  const columns = useMemo(() => columnsOf(combinations), [combinations]);
  const order = props.place.query["s"] ?? "";
  const [name, isDescending] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const column = columns.find((one) => one.name === name);
  const sorted = useMemo(() => (column ? inOrder(combinations, column, isDescending) : combinations), [combinations, order]);
  return (
    <section aria-labelledby="combinations-title" class="combinations">
      <h2 id="combinations-title">Combinations</h2>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Table of combinations">
        <table class="plain striped">
          <thead>
            <tr>
              <th scope="col">combination</th>
              {columns.map((one) => (
                <th
                  scope="col"
                  class={one.isNumber ? "num" : ""}
                  aria-sort={one.name === name ? (isDescending ? "descending" : "ascending") : undefined}
                >
                  <button type="button" class="sort" title={one.title ? printable(one.name) : undefined} onClick={() => setQuery({ s: one.name === name && !isDescending ? `-${name}` : one.name })}>
                    <Text text={one.title ?? one.name} />
                    {one.name === name && <span aria-hidden="true"> {isDescending ? "▼" : "▲"}</span>}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.map((combination) => (
              <tr>
                <th scope="row">
                  <a href={href({ run: combination.slug })}>
                    <Text text={combination.slug} />
                  </a>
                </th>
                {columns.map((one) => (
                  <td class={one.isNumber ? "num" : ""}>
                    <Text text={one.text(combination) || "–"} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function columnsOf(combinations: readonly CombinationView[]): Column[] {
  const keys = (pick: (combination: CombinationView) => Readonly<Record<string, string>> | undefined): string[] => [
    ...new Set(combinations.flatMap((one) => Object.keys(pick(one) ?? {}))),
  ];
  return [
    ...keys(({ values }) => values).map((name) => ({
      name,
      title: name.slice(name.lastIndexOf(".") + 1),
      isNumber: false,
      text: ({ values }: CombinationView) => own(values, name) ?? "",
    })),
    { name: "ended", isNumber: true, text: ({ done, planned }) => `${done} of ${planned}` },
    { name: "failed", isNumber: true, text: ({ failed }) => String(failed) },
    ...keys(({ figures }) => figures).map((name) => ({
      name,
      isNumber: true,
      text: ({ figures }: CombinationView) => own(figures, name) ?? "",
    })),
  ];
}

function inOrder(combinations: readonly CombinationView[], column: Column, isDescending: boolean): readonly CombinationView[] {
  const collator = new Intl.Collator("en", { numeric: true });
  const sign = isDescending ? -1 : 1;
  return [...combinations].sort((a, b) => sign * compare(column.text(a), column.text(b), collator));
}

/** By the number that a figure begins with; else as words. */
function compare(a: string, b: string, collator: Intl.Collator): number {
  const [left, right] = [Number.parseFloat(a), Number.parseFloat(b)];
  if (!Number.isNaN(left) && !Number.isNaN(right) && left !== right) return left - right;
  return collator.compare(a, b);
}
