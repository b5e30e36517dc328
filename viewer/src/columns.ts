// The list of conversations as columns of typed arrays: appended to, sorted, counted; no object for each row.
import type { ColumnView, IndexColumns } from "./model";

/** A growing array of numbers. */
class Numbers<A extends Int32Array | Float64Array> {
  #all: A;
  length = 0;

  constructor(private readonly make: (length: number) => A) {
    this.#all = make(1024);
  }

  append(values: ArrayLike<number>): void {
    const needed = this.length + values.length;
    if (needed > this.#all.length) {
      const larger = this.make(Math.max(needed, 2 * this.#all.length));
      larger.set(this.#all.subarray(0, this.length) as never);
      this.#all = larger;
    }
    this.#all.set(values as never, this.length);
    this.length = needed;
  }

  get values(): A {
    return this.#all.subarray(0, this.length) as A;
  }
}

const integers = (): Numbers<Int32Array> => new Numbers((length) => new Int32Array(length));

/** One word for each row, -1 for none. */
export class WordValues {
  words: string[] = [];
  readonly #codes = new Map<string, number>();
  readonly #rows = integers();

  get codes(): Int32Array {
    return this.#rows.values;
  }

  append(words: readonly string[], codes: readonly number[]): void {
    if (this.words.length === 0) {
      // The words of one answer differ; they are looked up only when more rows come.
      this.words = [...words];
      this.#rows.append(codes);
      return;
    }
    if (this.#codes.size === 0) this.words.forEach((word, code) => this.#codes.set(word, code));
    const own = words.map((word) => this.code(word));
    this.#rows.append(codes.map((code) => (code < 0 ? -1 : own[code]!)));
  }

  private code(word: string): number {
    const known = this.#codes.get(word);
    if (known !== undefined) return known;
    this.words.push(word);
    this.#codes.set(word, this.words.length - 1);
    return this.words.length - 1;
  }
}

/** Several words for each row, as the code of their combination; equal lists have one code. */
export class ListValues {
  /** The combinations as text. */
  readonly words: string[] = [];
  readonly #parts: (readonly string[])[] = [];
  readonly #codes = new Map<string, number>();
  readonly #rows = integers();

  get codes(): Int32Array {
    return this.#rows.values;
  }

  parts(code: number): readonly string[] {
    return this.#parts[code] ?? [];
  }

  append(words: readonly string[], lists: readonly (readonly number[])[]): void {
    const known = new Map<string, number>();
    const codes = lists.map((list) => {
      if (list.length === 0) return -1;
      const key = list.join(" ");
      let code = known.get(key);
      if (code === undefined) known.set(key, (code = this.code(list.map((one) => words[one] ?? ""))));
      return code;
    });
    this.#rows.append(codes);
  }

  private code(parts: readonly string[]): number {
    const key = JSON.stringify(parts);
    const known = this.#codes.get(key);
    if (known !== undefined) return known;
    this.words.push(parts.join(", "));
    this.#parts.push(parts);
    this.#codes.set(key, this.words.length - 1);
    return this.words.length - 1;
  }
}

/** A number for each row, NaN for none; a truth value is 0 or 1. */
export class NumberValues {
  readonly #rows = new Numbers((length) => new Float64Array(length));

  get values(): Float64Array {
    return this.#rows.values;
  }

  append(numbers: readonly (number | null)[]): void {
    this.#rows.append(Float64Array.from(numbers, (value) => value ?? NaN));
  }
}

export type Values = WordValues | ListValues | NumberValues;

/** All rows that are known. `version` changes with them. */
export class Rows {
  count = 0;
  version = 0;
  /** The version of the run's list, as IndexColumns has it. */
  edition = 0;
  readonly #columns = new Map<string, Values>();
  readonly #ranks = new Map<string, Int32Array>();

  names(): Iterable<string> {
    return this.#columns.keys();
  }

  column(name: string): Values | undefined {
    return this.#columns.get(name);
  }

  /** Adds rows. What is known already is passed over; returns false where rows between are missing. */
  append(columns: IndexColumns): boolean {
    if (columns.since > this.count) return false;
    this.edition = columns.version ?? 0;
    const skip = this.count - columns.since;
    const added = columns.rows - skip;
    if (added <= 0) return true;
    for (const [name, { words, codes }] of Object.entries(columns.words)) {
      this.#of(name, WordValues).append(words, skip ? codes.slice(skip) : codes);
    }
    for (const [name, { words, lists }] of Object.entries(columns.lists)) {
      this.#of(name, ListValues).append(words, skip ? lists.slice(skip) : lists);
    }
    for (const [name, { numbers }] of Object.entries(columns.numbers)) {
      this.#of(name, NumberValues).append(skip ? numbers.slice(skip) : numbers);
    }
    this.count += added;
    for (const values of this.#columns.values()) this.#pad(values);
    this.version += 1;
    this.#ranks.clear();
    return true;
  }

  number(name: string, row: number): number {
    const values = this.#columns.get(name);
    return values instanceof NumberValues ? (values.values[row] ?? NaN) : NaN;
  }

  /** A cell as text; empty for none. */
  text(column: ColumnView, row: number): string {
    const values = this.#columns.get(column.name);
    if (values === undefined) return "";
    if (values instanceof NumberValues) {
      const value = values.values[row] ?? NaN;
      if (Number.isNaN(value)) return "";
      return column.kind === "truth" ? (value ? "yes" : "no") : numberText(value);
    }
    return values.words[values.codes[row] ?? -1] ?? "";
  }

  /** Rows that may have the longest texts of a column: of its least and greatest number, and the first ones. */
  widest(name: string, first: number): number[] {
    const rows = Array.from({ length: Math.min(first, this.count) }, (_, row) => row);
    const values = this.#columns.get(name);
    if (!(values instanceof NumberValues)) return rows;
    const numbers = values.values;
    let [least, most] = [0, 0];
    for (let row = 0; row < numbers.length; row += 1) {
      if (!(numbers[row]! >= numbers[least]!)) least = Number.isNaN(numbers[row]!) ? least : row;
      if (!(numbers[row]! <= numbers[most]!)) most = Number.isNaN(numbers[row]!) ? most : row;
    }
    return [...rows, least, most];
  }

  /** The chosen rows in the order of a column; rows without a value come last in either direction. */
  sorted(chosen: Int32Array, name: string, isDescending: boolean): Int32Array {
    const values = this.#columns.get(name);
    if (values === undefined) return chosen;
    let ranks = this.#ranks.get(name);
    if (ranks === undefined) {
      ranks = values instanceof NumberValues ? numberRanks(values.values) : wordRanks(values.words, values.codes);
      this.#ranks.set(name, ranks);
    }
    return byRank(chosen, ranks, isDescending);
  }

  #of<V extends Values>(name: string, kind: new () => V): V {
    const known = this.#columns.get(name);
    if (known instanceof kind) return known;
    const made = new kind();
    this.#columns.set(name, made);
    this.#pad(made);
    return made;
  }

  /** A column that earlier or later rows lack has no value there. */
  #pad(values: Values): void {
    const length = values instanceof NumberValues ? values.values.length : values.codes.length;
    const missing = this.count - length;
    if (missing <= 0) return;
    if (values instanceof NumberValues) values.append(new Array<null>(missing).fill(null));
    else if (values instanceof ListValues) values.append([], Array.from({ length: missing }, () => []));
    else values.append([], new Array<number>(missing).fill(-1));
  }
}

/** A number as a list shows it. */
export function numberText(value: number): string {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

/** Whole numbers are their own ranks where they lie within so many for each of them. */
const SPREAD_MAX = 16;

/** For each row the rank of its value: equal ones have one rank, and a greater one a greater rank; -1 for none. */
function numberRanks(values: Float64Array): Int32Array {
  const ranks = new Int32Array(values.length);
  let [least, most, areWhole] = [Infinity, -Infinity, true];
  for (let row = 0; row < values.length; row += 1) {
    const value = values[row]!;
    if (value < least) least = value;
    if (value > most) most = value;
    if (value % 1 !== 0 && !Number.isNaN(value)) areWhole = false;
  }
  if (areWhole && most - least <= SPREAD_MAX * values.length) {
    for (let row = 0; row < values.length; row += 1) ranks[row] = Number.isNaN(values[row]!) ? -1 : values[row]! - least;
    return ranks;
  }
  const different = values.filter((value) => !Number.isNaN(value)).sort();
  let count = 0;
  for (let at = 0; at < different.length; at += 1) {
    if (at === 0 || different[at] !== different[at - 1]) different[count++] = different[at]!;
  }
  for (let row = 0; row < values.length; row += 1) {
    const value = values[row]!;
    if (Number.isNaN(value)) {
      ranks[row] = -1;
      continue;
    }
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (different[middle]! < value) low = middle + 1;
      else high = middle;
    }
    ranks[row] = low;
  }
  return ranks;
}

function wordRanks(words: readonly string[], codes: Int32Array): Int32Array {
  const ofCode = tailRanks(words) ?? sortedRanks(words);
  const ranks = new Int32Array(codes.length);
  for (let row = 0; row < codes.length; row += 1) ranks[row] = codes[row]! < 0 ? -1 : ofCode[codes[row]!]!;
  return ranks;
}

function sortedRanks(words: readonly string[]): Int32Array {
  // Without a comparison function, which would be called two million times for a hundred thousand words.
  const places = new Map([...words].sort().map((word, place) => [word, place]));
  return Int32Array.from(words, (word) => places.get(word) ?? -1);
}

const ASCII = 128;

/**
 * The ranks of words that differ in a few last letters, such as a hundred thousand ids: what follows their common
 * beginning is read as a number, whose digits are the letters in use. Undefined for other words.
 */
function tailRanks(words: readonly string[]): Int32Array | undefined {
  let [start, end] = [words[0]?.length ?? 0, 0];
  for (const word of words) {
    while (!word.startsWith(words[0]!.slice(0, start))) start -= 1;
    end = Math.max(end, word.length);
  }
  const digits = new Uint8Array(ASCII);
  for (const word of words) {
    for (let at = start; at < word.length; at += 1) {
      const letter = word.charCodeAt(at);
      if (letter >= ASCII) return undefined;
      digits[letter] = 1;
    }
  }
  let base = 1;
  for (let letter = 0; letter < ASCII; letter += 1) if (digits[letter]) digits[letter] = base++;
  if (base ** (end - start) > Number.MAX_SAFE_INTEGER) return undefined;
  const numbers = new Float64Array(words.length);
  for (let code = 0; code < words.length; code += 1) {
    const word = words[code]!;
    let number = 0;
    for (let at = start; at < end; at += 1) number = number * base + (at < word.length ? digits[word.charCodeAt(at)]! : 0);
    numbers[code] = number;
  }
  return numberRanks(numbers);
}

/** Sorts by counting: linear, and equal rows keep their order. */
function byRank(chosen: Int32Array, ranks: Int32Array, isDescending: boolean): Int32Array {
  let most = -1;
  for (const row of chosen) if (ranks[row]! > most) most = ranks[row]!;
  const slot = (row: number): number => {
    const rank = ranks[row]!;
    if (rank < 0) return most + 1;
    return isDescending ? most - rank : rank;
  };
  const starts = new Int32Array(most + 3);
  for (const row of chosen) starts[slot(row) + 1]! += 1;
  for (let at = 1; at < starts.length; at += 1) starts[at]! += starts[at - 1]!;
  const sorted = new Int32Array(chosen.length);
  for (const row of chosen) sorted[starts[slot(row)]!++] = row;
  return sorted;
}
