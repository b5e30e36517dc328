// Data from files beside the page, or from the page itself: a publication, opened by double click or from any host.
//
// A page of the file system may neither fetch nor load modules, but it may load scripts. Each piece of data is a script
// that calls `__mac_data` with its name and its Base64. `mac_runner/viewer/packing.py` writes them.
import type {
  CompareView,
  ConversationView,
  EnginesPage,
  FlowPage,
  ForkTree,
  IndexColumns,
  RunPage,
  SearchPage,
  TurnView,
} from "./model";
import { TransportError, type Beside, type Listener, type Transport } from "./transport";

interface Seen<T> {
  readonly whole: T;
  /** By seat. */
  readonly seats: readonly T[];
}

/** What was compared when the run was published, with the conversation in whose file it is on the left. */
interface Compared {
  readonly folder: number;
  readonly number: number;
  readonly rows: CompareView["rows"];
  readonly first_turn: string;
  readonly reason: string;
}

declare global {
  interface Window {
    __mac_data?: (name: string, data: string) => void;
  }
}

const KEPT_MAX = 24;
const BLOCK = 1000;
const MARK = "\u0001";
const EMBEDDED = "data:";

const arrived = new Map<string, string>();

/** From a publication. What it does not hold is an error that says so. */
export class Published implements Transport {
  readonly isServed = false;
  private readonly kept = new Map<string, Promise<unknown>>();

  async run(run: string): Promise<RunPage> {
    return this.load<RunPage>(`${await this.number(run)}/run`);
  }

  async index(run: string, since: number): Promise<IndexColumns> {
    const found = await this.load<IndexColumns>(`${await this.number(run)}/index`);
    return since < found.rows ? found : { since, rows: 0, words: {}, lists: {}, numbers: {} };
  }

  async conversation(run: string, name: string, seat: string): Promise<ConversationView> {
    const seen = await this.seen<ConversationView>("c", run, name);
    if (seat === "") return seen.whole;
    return found(
      seen.seats.find((view) => view.seat === seat),
      `What ${seat} saw was not published.`,
    );
  }

  async turn(run: string, name: string, key: string, seat: string): Promise<TurnView> {
    const turns = await this.seen<readonly TurnView[]>("t", run, name);
    const views = (await this.seen<ConversationView>("c", run, name)).seats;
    const own = seat === "" ? turns.whole : turns.seats[views.findIndex((view) => view.seat === seat)];
    return found(
      own?.find((turn) => turn.key === key),
      `There is no turn ${key}.`,
    );
  }

  async beside(run: string, _page: RunPage, view: ConversationView): Promise<Beside> {
    const { numbers } = await this.index(run, 0);
    let [before, after]: (number | null)[] = [null, null];
    for (const [row, number] of (numbers["number"]?.numbers ?? []).entries()) {
      if (number === null || numbers["published"]?.numbers[row] === 0) continue;
      if (number < view.index && number > (before ?? -1)) before = number;
      if (number > view.index && number < (after ?? Infinity)) after = number;
    }
    return { before: before ?? null, after: after ?? null };
  }

  async compare(run: string, left: string, right: string, other: string): Promise<CompareView> {
    const one = { folder: await this.number(run), number: await this.task(run, left) };
    const two = { folder: await this.number(other || run), number: await this.task(other || run, right) };
    const isSwapped = two.folder < one.folder || (two.folder === one.folder && two.number < one.number);
    const [first, second] = isSwapped ? [two, one] : [one, two];
    const views = [await this.conversation(run, left, ""), await this.conversation(other || run, right, "")] as const;
    const holds = await this.load<{ comparisons: boolean }>("0/holds");
    const pairs = holds.comparisons ? await this.load<readonly Compared[]>(dataName(first.folder, "x", first.number)) : [];
    const pair = found(
      pairs.find((each) => each.folder === second.folder && each.number === second.number),
      "This comparison was not published. It holds conversations of one number in two combinations, and forks of one parent.",
    );
    const rows = isSwapped
      ? pair.rows.map((row) => ({ left: row.right, right: row.left, is_equal: row.is_equal }))
      : pair.rows;
    return { left: views[0], right: views[1], rows, first_turn: pair.first_turn, reason: pair.reason };
  }

  async forks(run: string, name: string): Promise<readonly ForkTree[]> {
    const trees = await this.load<readonly ForkTree[]>(`${await this.number(run)}/forks`);
    if (name === "") return trees;
    const number = await this.task(run, name);
    return trees.filter((tree) => tree.arms.some((arm) => arm.draws.includes(number)));
  }

  async flow(run: string, only: string): Promise<FlowPage> {
    if (only !== "") {
      throw new TransportError("A publication holds the flow of all its conversations; mac-run view can filter it.");
    }
    return this.load<FlowPage>(`${await this.number(run)}/flow`);
  }

  async engines(run: string): Promise<EnginesPage> {
    return this.load<EnginesPage>(`${await this.number(run)}/engines`);
  }

  async search(): Promise<SearchPage> {
    throw new TransportError("A publication cannot be searched; mac-run view can.");
  }

  listen(_run: string, _listener: Listener): () => void {
    return () => undefined;
  }

  /** The folder of a run: 0, or the place of a combination, from 1. */
  private async number(run: string): Promise<number> {
    if (run === "") return 0;
    const grid = await this.load<RunPage>("0/run");
    const place = (grid.combinations ?? []).findIndex((one) => one.slug === run);
    if (place < 0) throw new TransportError(`There is no combination ${run} in this publication.`);
    return place + 1;
  }

  /** The number of a conversation that is named by number or task id. */
  private async task(run: string, name: string): Promise<number> {
    if (/^\d+$/.test(name)) return Number(name);
    const columns = await this.index(run, 0);
    const ids = columns.words["id"];
    const row = ids ? ids.codes.indexOf(ids.words.indexOf(name)) : -1;
    return found(row < 0 ? null : columns.numbers["number"]?.numbers[row], `No conversation is called ${name}.`);
  }

  private async seen<T>(kind: string, run: string, name: string): Promise<Seen<T>> {
    const [folder, number] = [await this.number(run), await this.task(run, name)];
    const { numbers } = await this.index(run, 0);
    const row = numbers["number"]?.numbers.indexOf(number) ?? -1;
    // Of a sample, the list says what can be opened: a script that is not there would be an error in the console.
    if (row < 0 || numbers["published"]?.numbers[row] === 0) {
      throw new TransportError(`Conversation ${name} was not published.`);
    }
    return this.load<Seen<T>>(dataName(folder, kind, number));
  }

  /** Data by name; the last ones that were used are kept. */
  private load<T>(name: string): Promise<T> {
    const known = this.kept.get(name) ?? read(name);
    this.kept.delete(name);
    this.kept.set(name, known);
    known.catch(() => this.kept.delete(name));
    for (const [old] of this.kept) {
      if (this.kept.size <= KEPT_MAX) break;
      this.kept.delete(old);
    }
    return known as Promise<T>;
  }
}

function dataName(folder: number, kind: string, number: number): string {
  return `${folder}/${kind}${Math.floor(number / BLOCK)}/${number}`;
}

async function read(name: string): Promise<unknown> {
  const embedded = document.getElementById(EMBEDDED + name);
  const data = embedded?.textContent ?? (isSingle() ? null : await fromScript(name));
  if (data === null) throw new TransportError("This was not published, or its file is missing.");
  const [table, value] = (await unpack(data)) as [string[], unknown];
  return expand([value], table)[0];
}

/** Whether this page is all there is. */
export function isSingle(): boolean {
  return document.querySelector('meta[name="mac-data"]')?.getAttribute("content") === "single";
}

function fromScript(name: string): Promise<string | null> {
  window.__mac_data ??= (arrival, data) => void arrived.set(arrival, data);
  return new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = `data/${name}.js`;
    script.onload = () => {
      script.remove();
      resolve(arrived.get(name) ?? null);
      arrived.delete(name);
    };
    script.onerror = () => {
      script.remove();
      resolve(null);
    };
    document.head.append(script);
  });
}

async function unpack(data: string): Promise<unknown> {
  const packed = Uint8Array.from(atob(data.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Puts the texts of the table into the places that name them by number. */
function expand<T extends object>(part: T, table: readonly string[]): T {
  // Own keys alone: a name such as `__proto__` is one like any other.
  const parts = part as Record<string, unknown>;
  for (const key of Object.keys(parts)) {
    const value = parts[key];
    if (typeof value === "string") {
      if (value.startsWith(MARK)) parts[key] = table[Number(value.slice(1))];
    } else if (typeof value === "object" && value !== null) {
      expand(value, table);
    }
  }
  return part;
}

function found<T>(value: T | null | undefined, missing: string): T {
  if (value === null || value === undefined) throw new TransportError(missing);
  return value;
}
