// The filter language: `days>5 winner=town status:failed text`. Conditions mean what they mean to `--where`.
import { ListValues, NumberValues, type Rows, WordValues } from "./columns";
import type { ColumnView } from "./model";

/** One part of a filter; a row has to meet all. `column` is empty for a text that any column may contain. */
export interface Term {
  readonly column: string;
  readonly comparison: string;
  /** One of them has to be met. */
  readonly wanted: readonly string[];
}

/** A filter that was read, or what is wrong with it. */
export interface Filter {
  readonly terms: readonly Term[];
  readonly error: string;
}

const STATUSES = ["finished", "failed"];
const TRUTHS: Readonly<Record<string, number>> = { true: 1, yes: 1, false: 0, no: 0 };
const TERM = /^([^\s!=<>:"]+)(!=|<=|>=|==|=|<|>|:)([\s\S]*)$/;

/** Splits at spaces that are not in quotes. */
function parts(text: string): string[] {
  return text.match(/(?:"[^"]*"?|[^\s"])+/g) ?? [];
}

/** Reads a filter against the columns that there are. */
export function parseFilter(text: string, columns: readonly ColumnView[]): Filter {
  const terms: Term[] = [];
  for (const part of parts(text)) {
    const term = parseTerm(part, columns);
    if (typeof term === "string") return { terms: [], error: term };
    terms.push(term);
  }
  return { terms, error: "" };
}

function parseTerm(part: string, columns: readonly ColumnView[]): Term | string {
  const match = part.startsWith('"') ? null : TERM.exec(part);
  if (!match) return bare(unquoted(part), columns);
  const [, name = "", sign = "", value = ""] = match;
  const column = columns.find((known) => known.name === name);
  if (!column) return `There is no column “${name}”. There are: ${columns.map((known) => known.name).join(", ")}.`;
  const wanted = alternatives(value);
  if (wanted.some((one) => one === "")) return `“${name}${sign}” is compared with nothing: write ${example(column)}.`;
  const comparison = sign === "==" ? "=" : sign;
  const fault = misfit(column, comparison, wanted);
  return fault || { column: name, comparison, wanted };
}

/** A word without a comparison: a status, a column of truth values, or a text. */
function bare(word: string, columns: readonly ColumnView[]): Term {
  if (STATUSES.includes(word)) return { column: "status", comparison: "=", wanted: [word] };
  if (columns.some(({ name, kind }) => name === word && kind === "truth")) {
    return { column: word, comparison: "=", wanted: ["yes"] };
  }
  return { column: "", comparison: ":", wanted: [word] };
}

function alternatives(value: string): string[] {
  return (value.match(/(?:"[^"]*"?|[^|"])+/g) ?? [""]).map(unquoted);
}

function unquoted(text: string): string {
  return text.replaceAll('"', "");
}

function misfit(column: ColumnView, comparison: string, wanted: readonly string[]): string {
  const { name, kind } = column;
  if (kind === "number") {
    const odd = wanted.find((value) => !isNumber(value));
    return odd === undefined ? "" : `${name} is a number and “${odd}” is not: write ${example(column)}.`;
  }
  if (!["=", "!=", ":"].includes(comparison)) return `${name} has no order: use =, != or : in place of ${comparison}.`;
  if (kind === "truth") {
    const odd = wanted.find((value) => !Object.hasOwn(TRUTHS, value.toLowerCase()));
    return odd === undefined ? "" : `${name} is yes or no, and “${odd}” is neither.`;
  }
  const odd = name === "status" ? wanted.find((value) => !STATUSES.includes(value.toLowerCase())) : undefined;
  return odd === undefined ? "" : `status is ${STATUSES.join(" or ")}, not “${odd}”.`;
}

function isNumber(text: string): boolean {
  return text.trim() !== "" && !Number.isNaN(Number(text));
}

function example({ name, kind }: ColumnView): string {
  return kind === "number" ? `${name}>5` : kind === "truth" ? `${name}=yes` : `${name}=VALUE`;
}

/** Adds to a mask of rows those that meet one term. */
export function mask(rows: Rows, term: Term): Uint8Array {
  const found = new Uint8Array(rows.count);
  if (term.column === "") {
    for (const name of rows.names()) {
      const values = rows.column(name);
      if (values instanceof WordValues || values instanceof ListValues) markWords(values, containing(term.wanted), found);
    }
    return found;
  }
  const values = rows.column(term.column);
  if (values === undefined) return found;
  if (values instanceof NumberValues) markNumbers(values.values, term, found);
  else markWords(values, wordTest(values, term), found);
  return found;
}

type WordTest = (word: string, code: number) => boolean;

function containing(wanted: readonly string[]): WordTest {
  const lower = wanted.map((value) => value.toLowerCase());
  return (word) => lower.some((value) => word.toLowerCase().includes(value));
}

function wordTest(values: WordValues | ListValues, { comparison, wanted }: Term): WordTest {
  if (comparison === ":") return containing(wanted);
  const lower = wanted.map((value) => value.toLowerCase());
  const isEqual: WordTest = (word, code) =>
    (values instanceof ListValues ? values.parts(code) : [word]).some((part) => lower.includes(part.toLowerCase()));
  return comparison === "!=" ? (word, code) => !isEqual(word, code) : isEqual;
}

function markWords({ words, codes }: WordValues | ListValues, test: WordTest, found: Uint8Array): void {
  const isMet = Uint8Array.from(words, (word, code) => (test(word, code) ? 1 : 0));
  for (let row = 0; row < codes.length; row += 1) {
    const code = codes[row]!;
    if (code >= 0 && isMet[code]) found[row] = 1;
  }
}

function markNumbers(values: Float64Array, { comparison, wanted }: Term, found: Uint8Array): void {
  const limits = wanted.map((value) => (Object.hasOwn(TRUTHS, value.toLowerCase()) ? TRUTHS[value.toLowerCase()]! : Number(value)));
  if (comparison === "!=") {
    for (let row = 0; row < values.length; row += 1) {
      const value = values[row]!;
      if (!Number.isNaN(value) && !limits.includes(value)) found[row] = 1;
    }
    return;
  }
  for (const limit of limits) {
    for (let row = 0; row < values.length; row += 1) if (compare(values[row]!, comparison, limit)) found[row] = 1;
  }
}

function compare(value: number, comparison: string, limit: number): boolean {
  switch (comparison) {
    case "<":
      return value < limit;
    case "<=":
      return value <= limit;
    case ">":
      return value > limit;
    case ">=":
      return value >= limit;
    default:
      return value === limit;
  }
}

/** Filters that were applied lately, term by term: typing changes one term at a time. */
export class Masks {
  #version = -1;
  readonly #known = new Map<string, Uint8Array>();

  /** The rows that meet all terms, in their order, less the terms on one column. */
  chosen(rows: Rows, terms: readonly Term[], without = ""): Int32Array {
    if (rows.version !== this.#version || this.#known.size > 64) this.#known.clear();
    this.#version = rows.version;
    const [first, ...others] = terms
      .filter(({ column }) => without === "" || column !== without)
      .map((term) => this.#mask(rows, term));
    const found = new Int32Array(rows.count);
    if (first === undefined) return found.map((_, row) => row);
    const met = others.length ? first.slice() : first;
    for (const other of others) for (let row = 0; row < met.length; row += 1) met[row]! &= other[row]!;
    let count = 0;
    for (let row = 0; row < met.length; row += 1) if (met[row]) found[count++] = row;
    return found.subarray(0, count);
  }

  #mask(rows: Rows, term: Term): Uint8Array {
    const key = JSON.stringify(term);
    const known = this.#known.get(key);
    if (known) return known;
    const made = mask(rows, term);
    this.#known.set(key, made);
    return made;
  }
}

/** A word as a filter writes it. */
function quoted(word: string): string {
  return /[\s"|]/.test(word) || word === "" ? `"${word.replaceAll('"', "")}"` : word;
}

/** The text of a filter with other terms on a column; what else it says stays as it was written. */
export function withTerms(text: string, column: string, terms: readonly string[]): string {
  const others = parts(text).filter((part) => part.startsWith('"') || TERM.exec(part)?.[1] !== column);
  const rest = column === "status" ? others.filter((part) => !STATUSES.includes(part)) : others;
  return [...rest, ...terms].join(" ");
}

/** The words that a filter wants of a column, by `=`. */
export function wantedWords(terms: readonly Term[], column: string): readonly string[] {
  return terms.filter((term) => term.column === column && term.comparison === "=").flatMap(({ wanted }) => wanted);
}

/** The term for words of a column; none for none. */
export function wordTerms(column: string, words: readonly string[]): string[] {
  return words.length ? [`${column}=${words.map(quoted).join("|")}`] : [];
}
