// The strip of phases: days, nights or rounds with their marks, and how many of each group are left.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { Phase } from "../model";
import { printable, Text } from "../text";

/** From this many phases on their names are shown by title alone. */
const CROWDED = 28;

interface StripProps {
  readonly phases: readonly Phase[];
  /** How many events the record has. */
  readonly end: number;
  /** The number of the current phase, or -1. */
  readonly current: number;
  readonly hrefOf: (place: number) => string;
}

/** Phases beside each other, as wide as they have events, each a link to its first event. */
export function Strip({ phases, end, current, hrefOf }: StripProps) {
  const box = useRef<HTMLElement>(null);
  useHeight(box);
  if (phases.length === 0) return null;
  const most = Math.max(0, ...phases.map(total));
  return (
    <nav class={`strip ${phases.length > CROWDED ? "is-crowded" : ""}`} aria-label="Phases" ref={box}>
      <ol>
        {phases.map((phase, number) => (
          <PhaseStop
            key={number}
            phase={phase}
            most={most}
            events={(phases[number + 1]?.first ?? end) - phase.first}
            isCurrent={number === current}
            hrefOf={hrefOf}
          />
        ))}
      </ol>
      <Groups phases={phases} />
    </nav>
  );
}

/** Gives the stylesheet the height of the strip: what sticks below it needs that. */
function useHeight(box: { readonly current: HTMLElement | null }): void {
  useLayoutEffect(() => {
    const strip = box.current;
    const page = strip?.parentElement;
    if (!strip || !page) return undefined;
    const measure = (): void => page.style.setProperty("--strip", `${strip.offsetHeight}px`);
    const watch = new ResizeObserver(measure);
    watch.observe(strip);
    measure();
    return () => watch.disconnect();
  }, []);
}

interface StopProps {
  readonly phase: Phase;
  readonly events: number;
  /** The largest count of all phases; 0 where none has any. */
  readonly most: number;
  readonly isCurrent: boolean;
  readonly hrefOf: (place: number) => string;
}

function PhaseStop({ phase, events, most, isCurrent, hrefOf }: StopProps) {
  const marks = phase.marks ?? [];
  return (
    <li class={`stop ${phase.kind}`} style={{ flexGrow: String(Math.max(events, 1)) }}>
      <span class="stop-head">
        <a
          href={hrefOf(phase.first)}
          aria-current={isCurrent ? "step" : undefined}
          class="stop-label"
          title={printable(phase.label)}
        >
          <Text text={phase.label} />
        </a>
        <span class="marks">
          {marks.map((mark, number) => (
            <a
              key={number}
              class={`mark tone-${mark.tone ?? "plain"}`}
              href={hrefOf(mark.event ?? phase.first)}
              title={printable(mark.text)}
              aria-label={printable(mark.text)}
            >
              {printable(mark.symbol)}
            </a>
          ))}
        </span>
      </span>
      {most > 0 && <Area phase={phase} most={most} />}
    </li>
  );
}

/** The groups at the end of a phase, one on the other. */
function Area({ phase, most }: { readonly phase: Phase; readonly most: number }) {
  let base = 1;
  return (
    <svg class="area" viewBox="0 0 1 1" preserveAspectRatio="none" role="img" aria-label={countsAt(phase)}>
      <title>{countsAt(phase)}</title>
      {(phase.standing ?? []).map((share) => {
        const height = share.count / most;
        base -= height;
        return (
          <rect key={share.name} class={`fill-${share.tone ?? "plain"}`} x={0} y={base} width={1} height={height} />
        );
      })}
    </svg>
  );
}

/** The groups with their first and last counts. */
function Groups({ phases }: { readonly phases: readonly Phase[] }) {
  const groups = groupsOf(phases);
  if (groups.length === 0) return null;
  return (
    <p class="groups">
      {groups.map((group) => (
        <span key={group.name} class={`key tone-${group.tone}`}>
          <Text text={group.name} /> {group.first} → {group.last}
        </span>
      ))}
    </p>
  );
}

function total(phase: Phase): number {
  return (phase.standing ?? []).reduce((sum, share) => sum + share.count, 0);
}

function countsAt(phase: Phase): string {
  const shares = (phase.standing ?? []).map((share) => `${share.count} ${share.name}`);
  return printable(`${phase.label}: ${shares.join(", ") || "no counts"}`);
}

function groupsOf(phases: readonly Phase[]) {
  const groups = new Map<string, { name: string; tone: string; first: number; last: number }>();
  const counted = phases.filter((phase) => total(phase) > 0);
  counted.forEach((phase, number) => {
    for (const share of phase.standing ?? []) {
      const group = groups.get(share.name);
      // A group that comes later, or is named no more at the end, has a count of 0 there.
      if (!group)
        groups.set(share.name, { name: share.name, tone: share.tone ?? "plain", first: number === 0 ? share.count : 0, last: 0 });
      if (number === counted.length - 1) groups.get(share.name)!.last = share.count;
    }
  });
  return [...groups.values()];
}
