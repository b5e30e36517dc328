// The events of a conversation by phase. Long feeds are windowed: only what is near the screen is in the page.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { EventView, Note } from "../model";
import { printable, Text } from "../text";
import { counted, toneSign } from "./scene";
import type { Section } from "./scene";

/** Feeds up to this many events are in the page whole. */
export const WHOLE_FEED = 400;
const CHUNK = 40;
const ROW_PX = 25;
/** How long a new current event is kept in view, unless the reader scrolls. */
const SETTLING_MS = 1000;
const READER_ACTS = ["wheel", "touchmove", "pointerdown", "keydown"] as const;
const MARGIN_PX = 1200;
const BLANK_LINES = /\n\s*\n/g;

export interface FeedProps {
  readonly parts: readonly Section[];
  readonly place: number | null;
  /** The kinds of notes that are hidden, and `thoughts`. */
  readonly hidden: ReadonlySet<string>;
  readonly hrefOf: (place: number, turn?: string) => string;
  readonly onSelect: (event: EventView) => void;
  /** How many seats there are; an audience of all of them is not named. */
  readonly seats: number;
}

/** The feed with a heading for each phase. */
export function Feed(props: FeedProps) {
  const count = props.parts.reduce((sum, part) => sum + part.events.length, 0);
  const isPrinting = usePrinting();
  const isWhole = count <= WHOLE_FEED || isPrinting;
  useScrollTo(props.place);
  if (count === 0) return <p class="empty">No event matches.</p>;
  return (
    <div class="feed">
      {props.parts.map((part) => (
        <div key={part.number} class="phase">
          {part.phase && (
            <h3 class={`phase-head ${part.phase.kind}`}>
              <Text text={part.phase.label} /> <span class="quiet">{counted(part.events.length, "event")}</span>
            </h3>
          )}
          {chunks(part.events).map((events) => (
            <Chunk key={events[0]!.place} events={events} feed={props} isWhole={isWhole} />
          ))}
        </div>
      ))}
    </div>
  );
}

function chunks(events: readonly EventView[]): readonly (readonly EventView[])[] {
  const all: EventView[][] = [];
  for (let first = 0; first < events.length; first += CHUNK) all.push(events.slice(first, first + CHUNK));
  return all;
}

interface ChunkProps {
  readonly events: readonly EventView[];
  readonly feed: FeedProps;
  readonly isWhole: boolean;
}

/** Some events; away from the screen an empty box of their height. */
function Chunk({ events, feed, isWhole }: ChunkProps) {
  const box = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isWhole);
  const height = useRef(events.length * ROW_PX);
  const isCurrent = feed.place !== null && events.some((event) => event.place === feed.place);
  const isShown = isWhole || isNear || isCurrent;
  useEffect(() => {
    if (isWhole || !box.current) return undefined;
    const watch = new IntersectionObserver(
      (entries) => {
        const entry = entries[entries.length - 1]!;
        if (!entry.isIntersecting && box.current?.childElementCount) height.current = entry.boundingClientRect.height;
        setNear(entry.isIntersecting);
      },
      { rootMargin: `${MARGIN_PX}px 0px` },
    );
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [isWhole]);
  return (
    <div ref={box} class="chunk" style={isShown ? undefined : { height: `${height.current}px` }}>
      {isShown && (
        <ol>
          {events.map((event) => (
            <EventRow key={event.place} event={event} feed={feed} />
          ))}
        </ol>
      )}
    </div>
  );
}

/** One event: its number, what was thought before it, its text, who learned of it, notes. */
function EventRow({ event, feed }: { readonly event: EventView; readonly feed: FeedProps }) {
  const isCurrent = event.place === feed.place;
  const notes = (event.notes ?? []).filter((note) => !feed.hidden.has(note.kind));
  const classes = ["event", isCurrent && "is-current", event.turn && "has-turn", (event.audience || event.reach) && "is-private"];
  return (
    <li
      class={classes.filter(Boolean).join(" ")}
      id={`e${event.place}`}
      aria-current={isCurrent ? "true" : undefined}
      onClick={(click) => selects(click) && feed.onSelect(event)}
    >
      <a class="place" href={feed.hrefOf(event.place, event.turn)} aria-label={`Event ${event.place}`}>
        {event.place}
      </a>
      <div class="event-body">
        {event.thought && !feed.hidden.has("thoughts") && (
          <p class="thought">
            <span class="thought-label">thought</span> <Text text={event.thought} />
          </p>
        )}
        <p class="event-text">
          <Text text={event.text.replace(BLANK_LINES, "\n")} />
        </p>
        {notes.length > 0 && <Notes notes={notes} />}
      </div>
      {event.audience && <Audience names={event.audience} seats={feed.seats} />}
      {event.reach && <span class="audience">{event.reach === "you" ? "[only you]" : "[you and others]"}</span>}
    </li>
  );
}

/** A click selects the event, unless it follows a link or marks text. */
function selects(click: MouseEvent): boolean {
  const target = click.target as Element;
  return !target.closest("a, button, summary") && !window.getSelection()?.toString();
}

function Audience({ names, seats }: { readonly names: readonly string[]; readonly seats: number }) {
  if (names.length >= seats && seats > 0) return null;
  const words = names.length ? `only ${names.join(", ")}` : "no participant";
  return (
    <span class="audience" title={printable(`Who learned of it: ${words}`)}>
      <Text text={words} />
    </span>
  );
}

function Notes({ notes }: { readonly notes: readonly Note[] }) {
  const truths = notes.filter((note) => note.kind === "truth");
  return (
    <div class="notes">
      {notes
        .filter((note) => note.kind !== "truth")
        .map((note, number) => (
          <span key={number} class={`chip tone-${note.tone ?? "plain"}`}>
            <span class="chip-kind">{printable(note.kind)}</span> <Text text={note.text} />
            {note.verdict && (
              <b>
                {" "}
                {toneSign(note.tone)} <Text text={note.verdict} />
              </b>
            )}
          </span>
        ))}
      {truths.length > 0 && <Truth notes={truths} />}
    </div>
  );
}

/** What was true, in a box; verdicts that all lines share are said once. */
function Truth({ notes }: { readonly notes: readonly Note[] }) {
  const verdicts = new Set(notes.map((note) => note.verdict ?? ""));
  const shared = verdicts.size === 1 ? [...verdicts][0]! : "";
  return (
    <div class="truth" role="note">
      <span class="truth-label">in truth</span> {shared && <span class="quiet">{printable(shared)}</span>}
      <ul>
        {notes.map((note, number) => (
          <li key={number} class={`tone-${note.tone ?? "plain"}`}>
            <Text text={note.text} /> {!shared && note.verdict && <b>{printable(note.verdict)}</b>}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Scrolls to the current event whenever it changes, and keeps it in view while what is above it is drawn. */
function useScrollTo(place: number | null): void {
  useLayoutEffect(() => {
    const row = place === null ? null : document.getElementById(`e${place}`);
    const feed = row?.closest(".feed");
    if (!row || !feed) return undefined;
    scrollTo(row);
    const watch = new ResizeObserver(() => scrollTo(row));
    watch.observe(feed);
    const stop = (): void => watch.disconnect();
    const timer = setTimeout(stop, SETTLING_MS);
    READER_ACTS.forEach((act) => window.addEventListener(act, stop, { passive: true }));
    return () => {
      stop();
      clearTimeout(timer);
      READER_ACTS.forEach((act) => window.removeEventListener(act, stop));
    };
  }, [place]);
}

function scrollTo(row: Element): void {
  const box = row.getBoundingClientRect();
  const style = getComputedStyle(row);
  const top = Number.parseFloat(style.scrollMarginTop) || 0;
  const bottom = window.innerHeight - (Number.parseFloat(style.scrollMarginBottom) || 0);
  if (box.top < top || box.bottom > bottom) row.scrollIntoView({ block: "center" });
}

/** Whether the page is being printed: then the feed is whole. */
function usePrinting(): boolean {
  const [isPrinting, setPrinting] = useState(false);
  useEffect(() => {
    const media = window.matchMedia("print");
    const change = () => setPrinting(media.matches);
    media.addEventListener("change", change);
    return () => media.removeEventListener("change", change);
  }, []);
  return isPrinting;
}
