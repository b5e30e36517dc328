// A conversation of any environment: its phases, participants, events and tables, whole or as a seat saw it.

import { type JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import type { ConversationView, EventView, Fact, RunPage, ViewTable } from "../model";
import { go, href, setQuery, type Place } from "../router";
import { Notice, type PageProps } from "../shell";
import { printable, Text } from "../text";
import { transport, type Beside } from "../transport";
import { Feed } from "./feed";
import "./game.css";
import { Roster } from "./roster";
import { counted, eventsWith, hasThoughts, nextSeat, noteKinds, phaseOf, sections, step, stepPhase } from "./scene";
import { Strip } from "./strip";
import { TableView } from "./tables";
import { TurnPanel } from "./turn";

/** `#/c/17?e=60&seat=Abel&t=KEY`. */
export function ConversationPage({ place, page }: PageProps): JSX.Element {
  const name = place.names[0] ?? "";
  const seat = place.query["seat"] ?? "";
  const [news, setNews] = useState(0);
  const loaded = useLoaded(() => transport.conversation(place.run, name, seat), [place.run, name, seat, news]);
  const view = loaded.value;
  const isOpen = view?.status === "open";
  const number = view?.index ?? -1;
  const beside = useLoaded(
    async () => (view ? await transport.beside(place.run, page, view) : NONE),
    [place.run, page.planned, view?.task_id],
  );
  useEffect(() => {
    if (!isOpen && !loaded.error) return undefined;
    const again = (): void => setNews((count) => count + 1);
    return transport.listen(place.run, {
      touched: (numbers) => numbers.includes(number) && again(),
      rows: (columns) => columns.numbers["number"]?.numbers.includes(number) && again(),
    });
  }, [place.run, number, isOpen]);
  if (loaded.error)
    return (
      <Notice title="This conversation cannot be shown" tone="bad">
        <p>{printable(loaded.error)}</p>
        <p>
          {seat && <a href={href({ ...place, query: {} })}>Show all of it</a>}{" "}
          <a href={href({ run: place.run })}>Go to the run</a>
        </p>
      </Notice>
    );
  if (!view) return <Notice title="Loading…" tone="quiet" />;
  return (
    <Conversation
      key={`${place.run} ${view.task_id}`}
      place={place}
      page={page}
      view={view}
      beside={beside.isLoading ? NONE : (beside.value ?? NONE)}
    />
  );
}

const NONE: Beside = { before: null, after: null };

interface ConversationProps {
  readonly place: Place;
  readonly page: RunPage;
  readonly view: ConversationView;
  readonly beside: Beside;
}

function Conversation({ place, page, view, beside }: ConversationProps): JSX.Element {
  const query = place.query;
  const current = placeOf(query["e"]);
  const turn = query["t"] ?? "";
  const words = query["q"] ?? "";
  const hidden = useMemo(() => new Set((query["h"] ?? "").split(",").filter(Boolean)), [query["h"]]);
  const events = useMemo(() => eventsWith(view.events, words), [view, words]);
  const parts = useMemo(() => sections(view, events), [view, events]);
  const find = useRef<HTMLInputElement>(null);
  const hrefOf = (event: number, key?: string): string =>
    href({ ...place, query: { ...query, e: String(event), t: key ?? (turn && (turnAt(view, event) || turn)), v: "" } });
  const eventHref = (event: number): string => hrefOf(event);
  const select = (event: EventView | undefined, how: { replace?: boolean } = { replace: true }): void => {
    if (event) setQuery({ e: String(event.place), t: turn ? event.turn || turn : "", v: "" }, how);
  };
  const at = (to: number | null): EventView | undefined => view.events.find((event) => event.place === to);
  useConversationKeys({ place, page, view, beside, current, turn, hidden, parts, events, select, at, find });
  const rounds = (view.tables ?? []).filter((table) => table.kind === "rounds");
  const others = (view.tables ?? []).filter((table) => table.kind !== "rounds");
  const isTables = query["v"] === "tables" && others.length > 0;
  const end = (view.events[view.events.length - 1]?.place ?? 0) + 1;
  return (
    <article class={`conversation ${turn ? "with-turn" : ""}`}>
      <Head view={view} place={place} page={page} beside={beside} />
      {view.seat && <SeatBanner view={view} place={place} />}
      {rounds.map((table) => (
        <TableView key={table.name} table={table} hrefOf={eventHref} />
      ))}
      {rounds.length > 0 && (
        <p class="flow-link">
          <a href={href({ run: place.run, page: "flow" })}>How stances change in all conversations</a>
        </p>
      )}
      <Strip phases={view.phases} end={end} current={phaseOf(view.phases, current ?? -1)} hrefOf={eventHref} />
      <div class="columns">
        <div class="side">
          <Roster
            members={view.members}
            seats={view.seats}
            place={current}
            seat={view.seat ?? ""}
            seatHref={(seat) => seatHref(place, view, seat)}
          />
          <AsOf current={current} end={end} />
        </div>
        <div class="middle">
          <Toolbar view={view} place={place} hidden={hidden} tables={others.length} isTables={isTables} find={find} />
          {isTables ? (
            <Tables tables={others} hrefOf={eventHref} />
          ) : (
            <Feed
              parts={parts}
              place={current}
              hidden={hidden}
              hrefOf={hrefOf}
              onSelect={(event) => setQuery({ e: String(event.place), t: event.turn || turn }, { replace: false })}
              seats={view.seats.length}
            />
          )}
        </div>
        {turn && (
          <TurnPanel
            run={place.run}
            name={place.names[0] ?? ""}
            turn={turn}
            seat={view.seat ?? ""}
            conversation={view.index}
            command={view.command ?? ""}
            hrefOf={(key) => href({ ...place, query: { ...query, t: key } })}
            onClose={() => setQuery({ t: "" })}
          />
        )}
      </div>
    </article>
  );
}

function placeOf(text: string | undefined): number | null {
  return text !== undefined && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function turnAt(view: ConversationView, place: number): string {
  return view.events.find((event) => event.place === place)?.turn ?? "";
}

/** The same place for another seat; a turn that is not the seat's own is closed. */
function seatHref(place: Place, view: ConversationView, seat: string): string {
  const turn = view.turns.find((head) => head.key === place.query["t"]);
  const keeps = turn !== undefined && (seat === "" || turn.agent === seat);
  return href({ ...place, query: { ...place.query, seat, t: keeps ? turn.key : "" } });
}

function Head({ view, place, beside }: ConversationProps): JSX.Element {
  const fork = view.fork;
  const facts = view.facts ?? [];
  return (
    <header class="conversation-head">
      <div class="title-line">
        <h1>
          Conversation {view.index}{" "}
          <small class="quiet">
            <Text text={view.task_id} />
          </small>
        </h1>
        {view.status !== "finished" && <b class={`badge status-${view.status}`}>{view.status}</b>}
        <nav class="pager" aria-label="Conversations">
          {beside.before !== null && <a href={neighbour(place, beside.before)}>← {beside.before}</a>}
          {beside.after !== null && <a href={neighbour(place, beside.after)}>{beside.after} →</a>}
          <CompareForm place={place} view={view} />
        </nav>
      </div>
      {view.failure && (
        <p class="failure" role="alert">
          <b>Failed:</b> <Text text={view.failure} />
        </p>
      )}
      {view.note && (
        <p class="failure" role="alert">
          <Text text={view.note} />
        </p>
      )}
      {view.status === "open" && (
        <p class="open-note" role="status">
          Not ended yet. {counted(view.turns.length, "turn")} so far; new ones appear here.
        </p>
      )}
      {fork && (
        <p class="fork-note">
          Fork of <Text text={fork.of} /> at turn <Text text={fork.turn} />, arm <Text text={fork.arm} />, draw {fork.draw}.{" "}
          <a href={href({ run: place.run, page: "compare", names: [fork.of, String(view.index)] })}>Compare with its parent</a>{" "}
          <a href={href({ run: place.run, page: "forks", names: [fork.of] })}>All forks</a>
        </p>
      )}
      {facts.length > 0 && <Facts facts={facts} place={place} />}
    </header>
  );
}

function Facts({ facts, place }: { readonly facts: readonly Fact[]; readonly place: Place }): JSX.Element {
  return (
    <dl class="facts">
      {facts.map((fact, number) => (
        <div key={number} class={fact.text.length > 90 ? "is-long" : undefined}>
          <dt>
            <Text text={fact.name} />
          </dt>
          <dd class={`tone-${fact.tone ?? "plain"}`}>
            {fact.event == null ? (
              <Text text={fact.text} />
            ) : (
              <a href={href({ ...place, query: { ...place.query, e: String(fact.event) } })}>
                <Text text={fact.text} />
              </a>
            )}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function neighbour(place: Place, number: number): string {
  const query = { seat: place.query["seat"] ?? "", h: place.query["h"] ?? "", v: place.query["v"] ?? "" };
  return href({ ...place, names: [String(number)], query });
}

/** A field for the number of another conversation. */
function CompareForm({ place, view }: { readonly place: Place; readonly view: ConversationView }): JSX.Element {
  const [other, setOther] = useState("");
  const [slug, setSlug] = useState("");
  const grid = useLoaded(async () => (place.run ? await transport.run("") : null), [place.run]);
  const slugs = (grid.value?.combinations ?? []).map((combination) => combination.slug);
  const compare = (event: Event): void => {
    event.preventDefault();
    const right = other.trim() || (slug ? String(view.index) : "");
    if (right) go({ run: place.run, page: "compare", names: [String(view.index), right], query: { other: slug } });
  };
  return (
    <form class="compare-form" onSubmit={compare}>
      <label>
        Compare with{" "}
        <input
          type="text"
          inputMode="numeric"
          size={5}
          value={other}
          placeholder="number"
          onInput={(event) => setOther(event.currentTarget.value)}
        />
      </label>
      {slugs.length > 1 && (
        <label>
          of{" "}
          <select value={slug} onChange={(event) => setSlug(event.currentTarget.value)}>
            <option value="">this combination</option>
            {slugs
              .filter((one) => one !== place.run)
              .map((one) => (
                <option key={one} value={one}>
                  {printable(one)}
                </option>
              ))}
          </select>
        </label>
      )}
      <button type="submit">Compare</button>
    </form>
  );
}

function SeatBanner({ view, place }: { readonly view: ConversationView; readonly place: Place }): JSX.Element {
  return (
    <p class="seat-banner" role="status">
      <b>
        As <Text text={view.seat ?? ""} /> saw it.
      </b>{" "}
      What this seat did not see is not on this page. <a href={seatHref(place, view, "")}>Show everything</a>
    </p>
  );
}

function AsOf({ current, end }: { readonly current: number | null; readonly end: number }): JSX.Element {
  if (current === null) return <p class="quiet">At the end.</p>;
  return (
    <p class="quiet">
      As of event {current} of {end - 1}.{" "}
      <button type="button" onClick={() => setQuery({ e: "" })}>
        To the end
      </button>
    </p>
  );
}

interface ToolbarProps {
  readonly view: ConversationView;
  readonly place: Place;
  readonly hidden: ReadonlySet<string>;
  readonly tables: number;
  readonly isTables: boolean;
  readonly find: { readonly current: HTMLInputElement | null };
}

function Toolbar({ view, place, hidden, tables, isTables, find }: ToolbarProps): JSX.Element {
  const kinds = noteKinds(view);
  return (
    <div class="toolbar" role="group" aria-label="What is shown">
      {tables > 0 && (
        <span class="views">
          <button type="button" aria-pressed={!isTables} onClick={() => setQuery({ v: "" })}>
            Record
          </button>
          <button type="button" aria-pressed={isTables} onClick={() => setQuery({ v: "tables" })}>
            Tables ({tables})
          </button>
        </span>
      )}
      <label>
        Seat{" "}
        <select
          value={view.seat ?? ""}
          onChange={(event) => (window.location.hash = seatHref(place, view, event.currentTarget.value))}
        >
          <option value="">everything</option>
          {view.seats.map((seat) => (
            <option key={seat} value={seat}>
              {printable(seat)}
            </option>
          ))}
        </select>
      </label>
      {hasThoughts(view) && <Toggle name="thoughts" hidden={hidden} />}
      {kinds.map((kind) => (
        <Toggle key={kind} name={kind} hidden={hidden} />
      ))}
      <label class="find">
        <span class="hidden-text">Find in this conversation</span>
        <input
          ref={find}
          type="search"
          placeholder="Find in this conversation"
          value={place.query["q"] ?? ""}
          onInput={(event) => setQuery({ q: event.currentTarget.value, v: "" })}
        />
      </label>
    </div>
  );
}

function Toggle({ name, hidden }: { readonly name: string; readonly hidden: ReadonlySet<string> }): JSX.Element {
  const isShown = !hidden.has(name);
  return (
    <label class="toggle">
      <input type="checkbox" checked={isShown} onChange={() => toggle(hidden, name)} /> {printable(name)}
    </label>
  );
}

function toggle(hidden: ReadonlySet<string>, name: string): void {
  const names = new Set(hidden);
  if (!names.delete(name)) names.add(name);
  setQuery({ h: [...names].join(",") });
}

function Tables(props: { readonly tables: readonly ViewTable[]; readonly hrefOf: (place: number) => string }): JSX.Element {
  return (
    <div class="tables">
      {props.tables.map((table, number) => (
        <TableView
          key={table.name}
          table={table}
          hrefOf={props.hrefOf}
          isBare={table.note !== undefined && table.note === props.tables[number + 1]?.note}
        />
      ))}
    </div>
  );
}

interface Keyed extends ConversationProps {
  readonly current: number | null;
  readonly turn: string;
  readonly hidden: ReadonlySet<string>;
  readonly parts: ReturnType<typeof sections>;
  readonly events: readonly EventView[];
  readonly select: (event: EventView | undefined) => void;
  readonly at: (place: number | null) => EventView | undefined;
  readonly find: { readonly current: HTMLInputElement | null };
}

function useConversationKeys(page: Keyed): void {
  const { place, view, beside, current, turn, parts, events, select, at } = page;
  const move = (by: 1 | -1): void => select(at(step(events, current, by)));
  const phase = (by: 1 | -1): void => select(at(stepPhase(parts, current, by)));
  const other = (next: number | null): void => {
    if (next !== null) window.location.hash = neighbour(place, next);
  };
  const inspect = (): void => setQuery({ t: turn ? "" : current === null ? "" : turnAt(view, current) });
  const seat = nextSeat(view.seats, view.seat ?? "");
  useKeys([
    { key: "j", text: "next event", run: () => move(1) },
    { key: "k", text: "previous event", run: () => move(-1) },
    { key: "n", text: "next phase", run: () => phase(1) },
    { key: "p", text: "previous phase", run: () => phase(-1) },
    { key: "i", text: "open or close the turn of the event", run: inspect },
    { key: "t", text: "show or hide thoughts", run: () => toggle(page.hidden, "thoughts") },
    { key: "s", text: "the next seat's view", run: () => (window.location.hash = seatHref(place, view, seat)) },
    { key: "[", text: "previous conversation", run: () => other(beside.before) },
    { key: "]", text: "next conversation", run: () => other(beside.after) },
    { key: "/", text: "find in this conversation", run: () => page.find.current?.focus() },
  ]);
}
