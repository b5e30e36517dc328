// The strip of phases: days, nights or rounds with their marks, and who is left.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { Phase } from "../model";
import { printable, Text } from "../text";

const AREA_HEIGHT = 28;
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
  return (
    <nav class={`strip ${phases.length > CROWDED ? "is-crowded" : ""}`} aria-label="Phases" ref={box}>
      <ol>
        {phases.map((phase, number) => (
          <PhaseStop
            key={number}
            phase={phase}
            events={(phases[number + 1]?.first ?? end) - phase.first}
            isCurrent={number === current}
            hrefOf={hrefOf}
          />
        ))}
      </ol>
      <Standing phases={phases} end={end} />
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
  readonly isCurrent: boolean;
  readonly hrefOf: (place: number) => string;
}

function PhaseStop({ phase, events, isCurrent, hrefOf }: StopProps) {
  const marks = phase.marks ?? [];
  return (
    <li class={`stop ${phase.kind}`} style={{ flexGrow: String(Math.max(events, 1)) }}>
      <a href={hrefOf(phase.first)} aria-current={isCurrent ? "step" : undefined} class="stop-label" title={printable(phase.label)}>
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
    </li>
  );
}

/** A small area of who is left at the end of each phase, by group. */
function Standing({ phases, end }: { readonly phases: readonly Phase[]; readonly end: number }) {
  const groups = groupsOf(phases);
  if (groups.length === 0) return null;
  const most = Math.max(1, ...phases.map((phase) => total(phase)));
  const start = phases[0]!.first;
  const width = Math.max(end - start, 1);
  return (
    <figure class="standing">
      <svg
        viewBox={`0 0 ${width} ${AREA_HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Who is left: ${phases.map(leftAt).filter(Boolean).join("; ")}`}
      >
        {phases.map((phase, number) => {
          const left = phase.first - start;
          const right = (phases[number + 1]?.first ?? end) - start;
          let base = AREA_HEIGHT;
          return (phase.standing ?? []).map((share) => {
            const height = (share.count / most) * AREA_HEIGHT;
            base -= height;
            return (
              <rect
                key={`${number} ${share.name}`}
                class={`fill-${share.tone ?? "plain"}`}
                x={left}
                y={base}
                width={right - left}
                height={height}
              >
                <title>{leftAt(phase)}</title>
              </rect>
            );
          });
        })}
      </svg>
      <figcaption>
        left:{" "}
        {groups.map((group) => (
          <span key={group.name} class={`key tone-${group.tone}`}>
            <Text text={group.name} /> {group.first}→{group.last}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

function total(phase: Phase): number {
  return (phase.standing ?? []).reduce((sum, share) => sum + share.count, 0);
}

function leftAt(phase: Phase): string {
  const shares = (phase.standing ?? []).map((share) => `${share.count} ${share.name}`);
  return shares.length ? printable(`${phase.label}: ${shares.join(", ")}`) : "";
}

function groupsOf(phases: readonly Phase[]) {
  const groups = new Map<string, { name: string; tone: string; first: number; last: number }>();
  for (const phase of phases) {
    for (const share of phase.standing ?? []) {
      const group = groups.get(share.name);
      if (group) group.last = share.count;
      else groups.set(share.name, { name: share.name, tone: share.tone ?? "plain", first: share.count, last: share.count });
    }
  }
  return [...groups.values()];
}
