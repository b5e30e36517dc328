// Chips for columns with few different words: each with its count, to narrow the list by.
import { type JSX } from "preact";
import { ListValues, type Rows, WordValues } from "../columns";
import { type Masks, type Term, wantedWords } from "../filter";
import type { ColumnView } from "../model";
import { Text } from "../text";

const WORDS_MAX = 12;
const SHOWN_MAX = 8;

/** The words of a column, each with how many rows of the filter have it. */
export interface Facet {
  readonly column: string;
  readonly words: readonly { readonly word: string; readonly count: number }[];
}

/** Counts each column under the other columns' conditions, so that another word can be added. */
export function facetsOf(
  rows: Rows,
  columns: readonly ColumnView[],
  terms: readonly Term[],
  chosen: Int32Array,
  masks: Masks,
): Facet[] {
  const facets: Facet[] = [];
  for (const column of columns) {
    if (column.name === "id") continue;
    const values = rows.column(column.name);
    if (values instanceof WordValues ? values.words.length > WORDS_MAX : !(values instanceof ListValues)) continue;
    const isNarrowed = terms.some((term) => term.column === column.name);
    const others = isNarrowed ? masks.chosen(rows, terms, column.name) : chosen;
    const words = countWords(values as WordValues | ListValues, others);
    if (words.length >= 2 && words.length <= WORDS_MAX) facets.push({ column: column.name, words });
    if (facets.length === SHOWN_MAX) break;
  }
  return facets;
}

function countWords(values: WordValues | ListValues, chosen: Int32Array): { word: string; count: number }[] {
  const ofCode = new Int32Array(values.words.length);
  const codes = values.codes;
  for (const row of chosen) {
    const code = codes[row]!;
    if (code >= 0) ofCode[code]! += 1;
  }
  const counts = new Map<string, number>();
  values.words.forEach((word, code) => {
    const parts = values instanceof ListValues ? values.parts(code) : [word];
    for (const part of new Set(parts)) counts.set(part, (counts.get(part) ?? 0) + ofCode[code]!);
  });
  return [...counts].map(([word, count]) => ({ word, count })).sort((a, b) => (a.word < b.word ? -1 : 1));
}

/** The chips. Pressing one adds its word to the filter or takes it away. */
export function Facets(props: {
  facets: readonly Facet[];
  terms: readonly Term[];
  onChoose: (column: string, words: readonly string[]) => void;
}): JSX.Element | null {
  if (props.facets.length === 0) return null;
  return (
    <div class="facets">
      {props.facets.map(({ column, words }) => {
        const wanted = wantedWords(props.terms, column).map((word) => word.toLowerCase());
        return (
          <div class="facet" role="group" aria-label={`Only with this ${column}`}>
            <span class="facet-name">{column}</span>
            <div class="facet-words">
            {words.map(({ word, count }) => {
              const isOn = wanted.includes(word.toLowerCase());
              const next = isOn ? wanted.filter((one) => one !== word.toLowerCase()) : [...wanted, word];
              return (
                <button type="button" class="facet-word" aria-pressed={isOn} onClick={() => props.onChoose(column, next)}>
                  {isOn && "✓ "}
                  <Text text={word} /> <span class="facet-count">{count.toLocaleString("en")}</span>
                </button>
              );
            })}
            </div>
          </div>
        );
      })}
    </div>
  );
}
