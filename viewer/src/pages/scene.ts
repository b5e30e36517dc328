// What the parts of a conversation's page compute from its view, without the page.

import type { ConversationView, EventView, Fact, Phase } from "../model";

export type Tone = NonNullable<Fact["tone"]>;

/** A stretch of the feed: a phase with its events. `phase` is null where the record has no phases. */
export interface Section {
  readonly phase: Phase | null;
  readonly number: number;
  readonly events: readonly EventView[];
}

/** The facts that are known at an event; those without an event always are. */
export function knownAt(facts: readonly Fact[] | undefined, place: number | null): readonly Fact[] {
  return (facts ?? []).filter((fact) => place === null || fact.event == null || fact.event <= place);
}

/** The number of the phase that an event belongs to, or -1. */
export function phaseOf(phases: readonly Phase[], place: number): number {
  let found = -1;
  phases.forEach((phase, number) => {
    if (phase.first <= place) found = number;
  });
  return found;
}

/** The events by phase, in order; phases without events that are shown are left out. */
export function sections(view: ConversationView, events: readonly EventView[]): readonly Section[] {
  if (view.phases.length === 0) return events.length ? [{ phase: null, number: -1, events }] : [];
  const byPhase = new Map<number, EventView[]>();
  for (const event of events) {
    const number = phaseOf(view.phases, event.place);
    const list = byPhase.get(number);
    if (list) list.push(event);
    else byPhase.set(number, [event]);
  }
  return [...byPhase].map(([number, list]) => ({ phase: view.phases[number] ?? null, number, events: list }));
}

/** The kinds of notes that a view has, in the order in which they first come. */
export function noteKinds(view: ConversationView): readonly string[] {
  const kinds = new Set<string>();
  for (const event of view.events) for (const note of event.notes ?? []) kinds.add(note.kind);
  return [...kinds];
}

/** Whether a view has thoughts at all. */
export function hasThoughts(view: ConversationView): boolean {
  return view.events.some((event) => event.thought);
}

/** The events that hold a text, in any of what the page shows of them. */
export function eventsWith(events: readonly EventView[], text: string): readonly EventView[] {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return events;
  return events.filter((event) => textOf(event).toLowerCase().includes(wanted));
}

function textOf(event: EventView): string {
  const notes = (event.notes ?? []).map((note) => `${note.kind} ${note.text} ${note.verdict ?? ""}`);
  return [event.when, event.agent ?? "", event.text, event.thought ?? "", ...notes].join("\n");
}

/** A sign for a verdict, so that it is read without its colour. */
export function toneSign(tone: Tone | undefined): string {
  if (tone === "good") return "✓";
  if (tone === "bad") return "✗";
  if (tone === "warn") return "!";
  return "";
}

/** The place of the event after or before another among those shown; the first or last at the ends. */
export function step(events: readonly EventView[], place: number | null, by: 1 | -1): number | null {
  if (events.length === 0) return null;
  const first = events[0]!.place;
  const last = events[events.length - 1]!.place;
  if (place === null) return by > 0 ? first : last;
  if (by > 0) return events.find((event) => event.place > place)?.place ?? last;
  return events.findLast((event) => event.place < place)?.place ?? first;
}

/** The place of the first event of the next or previous phase that has events. */
export function stepPhase(parts: readonly Section[], place: number | null, by: 1 | -1): number | null {
  if (parts.length === 0) return null;
  if (place === null) return parts[by > 0 ? 0 : parts.length - 1]!.events[0]!.place;
  const firsts = parts.map((part) => part.events[0]!.place);
  if (by > 0) return firsts.find((first) => first > place) ?? firsts[firsts.length - 1]!;
  return firsts.findLast((first) => first < place) ?? firsts[0]!;
}

/** The seat after another in the round of all seats; the whole comes after the last. */
export function nextSeat(seats: readonly string[], seat: string): string {
  return seat === "" ? (seats[0] ?? "") : (seats[seats.indexOf(seat) + 1] ?? "");
}

/** A word of a command for a POSIX shell. */
export function shellWord(word: string): string {
  return /^[A-Za-z0-9_\/.,:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** A duration in the unit that suits it. */
export function duration(seconds: number): string {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${(seconds / 60).toFixed(1)} min`;
}

/** A count with its noun. */
export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
