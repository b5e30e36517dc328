// Where the pages' data come from. A page asks a Transport and does not know which one it is.
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
import { Published } from "./published";

/** What a run at work reports. */
export interface Listener {
  rows?(columns: IndexColumns): void;
  standing?(page: RunPage): void;
  /** The numbers of conversations with new replies. */
  touched?(numbers: readonly number[]): void;
  engines?(page: EnginesPage): void;
  /** Why the run cannot be read now; empty when it can be again. */
  trouble?(words: string): void;
  /** Whether the connection to the server holds. */
  connected?(isConnected: boolean): void;
}

/** The numbers of the conversations before and after one; null where there is none to open. */
export interface Beside {
  readonly before: number | null;
  readonly after: number | null;
}

/** All that pages ask for. `run` is the slug of a combination of a grid; empty for the run itself. */
export interface Transport {
  /** Whether text search and what needs the server's work is there. */
  readonly isServed: boolean;
  run(run: string): Promise<RunPage>;
  /** Rows from `since` on; all of them where the list is of another version by now. */
  index(run: string, since: number, version: number): Promise<IndexColumns>;
  /** A conversation, by number or task id; with `seat` as that seat saw it. */
  conversation(run: string, name: string, seat: string): Promise<ConversationView>;
  turn(run: string, name: string, key: string, seat: string): Promise<TurnView>;
  /** What can be opened beside a conversation. The parent of a fork is of another run: it has nothing beside it here. */
  beside(run: string, page: RunPage, view: ConversationView): Promise<Beside>;
  /** With `other` the right conversation is of that combination. */
  compare(run: string, left: string, right: string, other: string): Promise<CompareView>;
  forks(run: string, name: string): Promise<readonly ForkTree[]>;
  /** `only` is a filter as the run page writes it, or row numbers with commas. */
  flow(run: string, only: string): Promise<FlowPage>;
  engines(run: string): Promise<EnginesPage>;
  /** Conversations from number `from` on in which the words occur. */
  search(run: string, words: string, from: number, signal?: AbortSignal): Promise<SearchPage>;
  /** Calls the listener until the returned function is called. */
  listen(run: string, listener: Listener): () => void;
}

/** What a page shows where data cannot be had. */
export class TransportError extends Error {
  override readonly name = "TransportError";
}

/** From `mac-run view`. */
export class Served implements Transport {
  readonly isServed = true;

  run(run: string): Promise<RunPage> {
    return ask("run", { run });
  }

  index(run: string, since: number, version: number): Promise<IndexColumns> {
    return ask("index", since ? { run, since: String(since), version: String(version) } : { run });
  }

  conversation(run: string, name: string, seat: string): Promise<ConversationView> {
    return ask(`c/${encodeURIComponent(name)}`, { run, seat });
  }

  turn(run: string, name: string, key: string, seat: string): Promise<TurnView> {
    return ask(`c/${encodeURIComponent(name)}/turn/${encodeURIComponent(key)}`, { run, seat });
  }

  async beside(_run: string, page: RunPage, view: ConversationView): Promise<Beside> {
    const isHere = view.command === page.directory;
    return {
      before: isHere && view.index > 0 ? view.index - 1 : null,
      after: isHere && view.index + 1 < page.planned ? view.index + 1 : null,
    };
  }

  compare(run: string, left: string, right: string, other: string): Promise<CompareView> {
    return ask("compare", { run, left, right, other });
  }

  forks(run: string, name: string): Promise<readonly ForkTree[]> {
    return ask("forks", { run, n: name });
  }

  flow(run: string, only: string): Promise<FlowPage> {
    return ask("flow", { run, only });
  }

  engines(run: string): Promise<EnginesPage> {
    return ask("engines", { run });
  }

  search(run: string, words: string, from: number, signal?: AbortSignal): Promise<SearchPage> {
    return ask("search", { run, q: words, from: String(from) }, signal);
  }

  /** All listeners of a run share one connection: browsers allow few to one host. */
  listen(run: string, listener: Listener): () => void {
    let stream = this.#streams.get(run);
    if (!stream) this.#streams.set(run, (stream = new Stream(run)));
    const own = stream;
    own.listeners.add(listener);
    return () => {
      own.listeners.delete(listener);
      // A page that replaces another listens in the same moment.
      window.setTimeout(() => {
        if (own.listeners.size > 0 || this.#streams.get(run) !== own) return;
        own.close();
        this.#streams.delete(run);
      }, 0);
    };
  }

  readonly #streams = new Map<string, Stream>();
}

class Stream {
  readonly listeners = new Set<Listener>();
  readonly #events: EventSource;

  constructor(run: string) {
    this.#events = new EventSource(`api/stream${search({ run })}`);
    this.#on<IndexColumns>("rows", (listener, columns) => listener.rows?.(columns));
    this.#on<RunPage>("standing", (listener, page) => listener.standing?.(page));
    this.#on<readonly number[]>("touched", (listener, numbers) => listener.touched?.(numbers));
    this.#on<EnginesPage>("engines", (listener, page) => listener.engines?.(page));
    this.#on<unknown>("trouble", (listener, body) => listener.trouble?.(words(body)));
    this.#events.onopen = () => this.#each((listener) => listener.connected?.(true));
    this.#events.onerror = () => this.#each((listener) => listener.connected?.(false));
  }

  close(): void {
    this.#events.close();
  }

  #on<T>(name: string, call: (listener: Listener, value: T) => void): void {
    this.#events.addEventListener(name, (event) => {
      const value = JSON.parse((event as MessageEvent<string>).data) as T;
      this.#each((listener) => call(listener, value));
    });
  }

  #each(call: (listener: Listener) => void): void {
    for (const listener of [...this.listeners]) call(listener);
  }
}

function search(values: Readonly<Record<string, string>>): string {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== ""));
  return query.size ? `?${query}` : "";
}

async function ask<T>(path: string, query: Readonly<Record<string, string>>, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`api/${path}${search(query)}`, { signal: signal ?? null });
  } catch (fault) {
    if (signal?.aborted) throw fault;
    throw new TransportError("The server does not answer. Is mac-run view still at work?");
  }
  const body: unknown = await response.json().catch(() => null);
  if (response.ok && body !== null) return body as T;
  throw new TransportError(words(body) || `The server answered with ${response.status} to ${path}.`);
}

function words(body: unknown): string {
  const error = typeof body === "object" && body !== null && "error" in body ? body.error : "";
  return typeof error === "string" ? error : "";
}

function meta(name: string): string {
  return document.querySelector(`meta[name="${name}"]`)?.getAttribute("content") ?? "";
}

/** The transport of this page. */
export const transport: Transport = meta("mac-data") ? new Published() : new Served();

// A page of one conversation begins with it.
if (meta("mac-start") && !window.location.hash) window.history.replaceState(null, "", meta("mac-start"));
