// Written by `python -m mac_runner.views.typescript viewer/src/model.ts`; do not edit.
// A field with `?` is absent where it has its default: an empty text or list, 0, false or null, if no other is named.

export type Tone = "bad" | "four" | "good" | "one" | "plain" | "quiet" | "three" | "two" | "warn";

/** A sign on the strip of phases, such as a death. A seat gets it without its tone. */
export interface Mark {
  readonly symbol: string;
  readonly text: string;
  readonly event?: number | null;
  readonly tone?: Tone; // Default: "plain"
}

/** A stretch of events: a day, a night, a round. */
export interface Phase {
  readonly label: string;
  readonly kind: "day" | "night" | "other" | "round";
  readonly first: number;
  readonly marks?: readonly Mark[];
  readonly standing?: readonly Share[];
}

/** A part of a whole. */
export interface Share {
  readonly name: string;
  readonly count: number;
  readonly tone?: Tone; // Default: "plain"
}

/**
 * Something about a participant or a conversation, such as its role; from `event` on it is known.
 *
 * Of several facts of one name the last one counts, such as what a death showed after what the role card said. What
 * is true goes to the end of the list, without an event. The tone says no more than the text.
 */
export interface Fact {
  readonly name: string;
  readonly text: string;
  readonly tone?: Tone; // Default: "plain"
  readonly event?: number | null;
}

/** A participant. `definition` and `model` are empty in the view of a seat. */
export interface Member {
  readonly name: string;
  readonly seat: number;
  readonly definition?: string;
  readonly model?: string;
  readonly facts?: readonly Fact[];
}

/** A remark on an event that no participant read: a claim with its verdict, what was true. Dropped for a seat. */
export interface Note {
  readonly kind: string;
  readonly text: string;
  readonly tone?: Tone; // Default: "plain"
  readonly verdict?: string;
}

/** One event of the record. */
export interface EventView {
  readonly place: number;
  readonly when: string;
  readonly text: string;
  readonly audience?: readonly string[] | null;
  readonly reach?: "" | "others" | "you";
  readonly agent?: string;
  readonly kind?: string;
  readonly turn?: string;
  readonly thought?: string;
  readonly notes?: readonly Note[];
}

/**
 * A cell of a table. `event` links to where it was said.
 *
 * `tone` and `verdict` may say what only the truth knows, such as that an answer is wrong: a seat gets neither.
 */
export interface Cell {
  readonly text: string;
  readonly tone?: Tone; // Default: "plain"
  readonly event?: number | null;
  readonly title?: string;
  readonly verdict?: string;
}

/** A row: its head, and one cell for each column. */
export interface TableRow {
  readonly head: Cell;
  readonly cells: readonly Cell[];
}

/**
 * A table of a conversation.
 *
 * A seat gets the rows and columns whose head or a cell its events showed. Other cells are blank, and arrows
 * and the note are left out. A head without an event is a label: all may know it.
 *
 * A `matrix` is drawn as small squares with letters, `rounds` as columns of stances, `list` as a plain table.
 */
export interface ViewTable {
  readonly name: string;
  readonly title: string;
  readonly kind: "list" | "matrix" | "rounds";
  readonly corner: string;
  readonly heads: readonly Cell[];
  readonly rows: readonly TableRow[];
  readonly arrows?: readonly Arrow[];
  readonly note?: string;
}

/** From a cell to another, by row and column: who changed after reading whom. */
export interface Arrow {
  readonly from_row: number;
  readonly from_column: number;
  readonly to_row: number;
  readonly to_column: number;
  readonly text?: string;
}

/** What an environment adds to the view of a conversation, from its transcript alone. */
export interface Scene {
  readonly phases?: readonly Phase[];
  readonly facts?: readonly Fact[];
  readonly members?: Readonly<Record<string, readonly Fact[]>>;
  readonly notes?: Readonly<Record<string, readonly Note[]>>;
  readonly agents?: Readonly<Record<string, string>>;
  readonly tables?: readonly ViewTable[];
}

/** A turn in the list of turns. A seat gets its own alone. */
export interface TurnHead {
  readonly key: string;
  readonly round: number;
  readonly agent: string;
  readonly result: string;
  readonly detail: string;
  readonly events?: readonly number[];
}

/** A conversation as a page shows it: whole, or as one seat saw it. */
export interface ConversationView {
  readonly task_id: string;
  readonly index: number;
  readonly environment: string;
  readonly status: "failed" | "finished" | "open";
  readonly seats: readonly string[];
  readonly members: readonly Member[];
  readonly phases: readonly Phase[];
  readonly events: readonly EventView[];
  readonly turns: readonly TurnHead[];
  readonly facts?: readonly Fact[];
  readonly tables?: readonly ViewTable[];
  readonly seat?: string;
  readonly failure?: string;
  readonly note?: string;
  readonly fork?: ForkOrigin | null;
  readonly command?: string;
}

/** Where a conversation leaves another. */
export interface ForkOrigin {
  readonly of: string;
  readonly turn: string;
  readonly arm: string;
  readonly draw: number;
}

/** A message as it was sent. */
export interface PromptMessage {
  readonly role: string;
  readonly content: string;
}

/** A piece of the difference of two texts. */
export interface Piece {
  readonly kind: "gone" | "new" | "same";
  readonly text: string;
}

/** A token of a reply with its log-probability (natural logarithm). */
export interface TokenView {
  readonly text: string;
  readonly logprob: number;
}

/** All that is recorded of one turn. */
export interface TurnView {
  readonly key: string;
  readonly agent: string;
  readonly model: string;
  readonly result: string;
  readonly detail: string;
  readonly reply: string;
  readonly said: string;
  readonly thought: string;
  readonly finish_reason: string;
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly cached_tokens: number;
  readonly queue_s?: number | null;
  readonly generate_s?: number | null;
  readonly faults?: readonly string[];
  readonly cause?: string;
  readonly siblings?: readonly TurnHead[];
  readonly sampling?: Readonly<Record<string, string>>;
  readonly prompt?: readonly PromptMessage[];
  readonly prompt_missing?: string;
  readonly previous?: string;
  readonly difference?: readonly Piece[];
  readonly tokens?: readonly TokenView[];
}

/** A column of the list of conversations. */
export interface ColumnView {
  readonly name: string;
  readonly kind: "number" | "truth" | "word" | "words";
  readonly is_listed?: boolean; // Default: true
}

/** A model of the run and what it did so far. */
export interface EngineView {
  readonly model: string;
  readonly backend: string;
  readonly address?: string;
  readonly slots?: number;
  readonly requests?: number;
  readonly retries?: number;
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly cached_tokens?: number;
  readonly latency_s?: number | null;
  readonly slots_used?: number | null;
}

/** A combination of a grid. */
export interface CombinationView {
  readonly slug: string;
  readonly values: Readonly<Record<string, string>>;
  readonly planned: number;
  readonly done: number;
  readonly failed: number;
  readonly figures?: Readonly<Record<string, string>>;
}

/** The head of a run, or of a grid. `state` is as `mac-run status` says it. */
export interface RunPage {
  readonly name: string;
  readonly directory: string;
  readonly environment: string;
  readonly description: string;
  readonly state: string;
  readonly planned: number;
  readonly done: number;
  readonly failed: number;
  readonly is_live: boolean;
  readonly columns: readonly ColumnView[];
  readonly engines: readonly EngineView[];
  readonly facts?: readonly Fact[];
  readonly combinations?: readonly CombinationView[];
  readonly is_sample?: boolean;
  readonly left_out?: readonly string[];
  readonly is_reading?: boolean;
}

/** Words by number: `codes[row]` is a place in `words`, or -1. */
export interface WordColumn {
  readonly words: readonly string[];
  readonly codes: readonly number[];
}

/** Several words for each row. */
export interface WordsColumn {
  readonly words: readonly string[];
  readonly lists: readonly (readonly number[])[];
}

/** Numbers; a truth value is 0 or 1. */
export interface NumberColumn {
  readonly numbers: readonly (number | null)[];
}

/**
 * The list of conversations by column, all of equal length, in the order in which they ended.
 *
 * The columns hold `rows` rows, which take the place of all from row `since` on: a page keeps its first `since` rows
 * and adds these. `version` changes when rows that were sent before count no more, as after a retry: then `since` is
 * 0, and the page begins again.
 */
export interface IndexColumns {
  readonly since: number;
  readonly rows: number;
  readonly words: Readonly<Record<string, WordColumn>>;
  readonly lists: Readonly<Record<string, WordsColumn>>;
  readonly numbers: Readonly<Record<string, NumberColumn>>;
  readonly version?: number;
}

/** One engine over the time of a run. All lists have one entry for each bin of `EnginesPage.bin_s`. */
export interface EngineSeries {
  readonly model: string;
  readonly slots: number;
  readonly busy: readonly number[];
  readonly done: readonly number[];
  readonly tokens: readonly number[];
  readonly retries: readonly number[];
  readonly tokens_per_s?: number | null;
  readonly latency_bounds_ms?: readonly number[];
  readonly latency_counts?: readonly number[];
  readonly latency_p50_ms?: number | null;
  readonly latency_p95_ms?: number | null;
  readonly queue_p50_s?: number | null;
  readonly queue_p95_s?: number | null;
  readonly cached_share?: number | null;
}

/** What the engines did over time, from `events.jsonl`. */
export interface EnginesPage {
  readonly bin_s: number;
  readonly elapsed_s: number;
  readonly sessions: readonly number[];
  readonly engines: readonly EngineSeries[];
}

/** Events of two conversations beside each other: places in `left.events` and `right.events`, or None. */
export interface ComparedRow {
  readonly left: number | null;
  readonly right: number | null;
  readonly is_equal: boolean;
}

/** Two conversations, aligned up to the first turn that differs and beside each other from there on. */
export interface CompareView {
  readonly left: ConversationView;
  readonly right: ConversationView;
  readonly rows: readonly ComparedRow[];
  readonly first_turn: string;
  readonly reason: string;
}

/** The conversations that leave a parent at one turn in one way. */
export interface ForkArm {
  readonly turn: string;
  readonly arm: string;
  readonly draws: readonly number[];
  readonly figure?: string;
  readonly value?: number | null;
  readonly lo?: number | null;
  readonly hi?: number | null;
}

/** The forks of one parent. */
export interface ForkTree {
  readonly parent: string;
  readonly arms: readonly ForkArm[];
}

/** How many participants went from one stance to another between two rounds, over the chosen conversations. */
export interface Flow {
  readonly round: number;
  readonly before: string;
  readonly after: string;
  readonly count: number;
}

/** The stance flow of the chosen conversations. `stances` are in the order in which they are drawn. */
export interface FlowPage {
  readonly conversations: number;
  readonly rounds: number;
  readonly stances: readonly Fact[];
  readonly flows: readonly Flow[];
  readonly moved?: ViewTable | null;
}

/** A conversation in which the words were found, with what is around them at the first place. */
export interface SearchHit {
  readonly n: number;
  readonly task_id: string;
  readonly text: string;
}

/** What a search found. It stops after so many hits, or after some seconds; `next` is where to go on (`from`). */
export interface SearchPage {
  readonly hits: readonly SearchHit[];
  readonly searched: number;
  readonly total: number;
  readonly next?: number | null;
}
