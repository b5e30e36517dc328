// Where the bands of a stance flow lie.

import type { FlowPage } from "../model";

export interface Bar {
  readonly stance: string;
  readonly round: number;
  readonly count: number;
  readonly x: number;
  readonly y: number;
  readonly height: number;
}

export interface Band {
  readonly round: number;
  readonly before: string;
  readonly after: string;
  readonly count: number;
  readonly path: string;
}

export interface Alluvial {
  readonly width: number;
  readonly height: number;
  readonly barWidth: number;
  readonly bars: readonly Bar[];
  readonly bands: readonly Band[];
}

const WIDTH = 860;
const HEIGHT = 300;
const BAR = 14;
const GAP = 8;

/** The bars of each round and the bands between them; `stances` gives the order from the top. */
export function alluvial(page: FlowPage): Alluvial {
  const stances = page.stances.map((stance) => stance.name);
  const rounds = Math.max(page.rounds, 1);
  const counts = countsOf(page, rounds);
  const most = Math.max(1, ...counts.map((round) => [...round.values()].reduce((sum, count) => sum + count, 0)));
  const scale = (HEIGHT - GAP * Math.max(stances.length - 1, 0)) / most;
  const stepX = rounds > 1 ? (WIDTH - BAR) / (rounds - 1) : 0;
  const bars: Bar[] = [];
  const places = new Map<string, Bar>();
  counts.forEach((round, number) => {
    let y = 0;
    for (const stance of stances) {
      const count = round.get(stance) ?? 0;
      if (count === 0) continue;
      const bar = { stance, round: number, count, x: number * stepX, y, height: count * scale };
      bars.push(bar);
      places.set(`${number} ${stance}`, bar);
      y += bar.height + GAP;
    }
  });
  return { width: WIDTH, height: HEIGHT, barWidth: BAR, bars, bands: bandsOf(page, stances, places, scale) };
}

function countsOf(page: FlowPage, rounds: number): readonly Map<string, number>[] {
  const counts = Array.from({ length: rounds }, () => new Map<string, number>());
  const first = Math.min(...page.flows.map((flow) => flow.round));
  for (const flow of page.flows) {
    const number = flow.round - first;
    if (number === 0) add(counts[0]!, flow.before, flow.count);
    const next = counts[number + 1];
    if (next) add(next, flow.after, flow.count);
  }
  return counts;
}

function add(counts: Map<string, number>, name: string, count: number): void {
  counts.set(name, (counts.get(name) ?? 0) + count);
}

function bandsOf(
  page: FlowPage,
  stances: readonly string[],
  places: ReadonlyMap<string, Bar>,
  scale: number,
): readonly Band[] {
  const first = Math.min(...page.flows.map((flow) => flow.round));
  const left = new Map<string, number>();
  const right = new Map<string, number>();
  const rank = (name: string) => stances.indexOf(name);
  const flows = [...page.flows].sort(
    (one, other) =>
      one.round - other.round || rank(one.before) - rank(other.before) || rank(one.after) - rank(other.after),
  );
  const bands: Band[] = [];
  for (const flow of flows) {
    const number = flow.round - first;
    const from = places.get(`${number} ${flow.before}`);
    const to = places.get(`${number + 1} ${flow.after}`);
    if (!from || !to) continue;
    const height = flow.count * scale;
    const y1 = from.y + (left.get(`${number} ${flow.before}`) ?? 0);
    const y2 = to.y + (right.get(`${number} ${flow.after}`) ?? 0);
    add(left, `${number} ${flow.before}`, height);
    add(right, `${number} ${flow.after}`, height);
    bands.push({ ...flow, round: number, path: ribbon(from.x + BAR, y1, to.x, y2, height) });
  }
  return bands;
}

function ribbon(x1: number, y1: number, x2: number, y2: number, height: number): string {
  const middle = (x1 + x2) / 2;
  const top = `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`;
  return `${top} L${x2},${y2 + height} C${middle},${y2 + height} ${middle},${y1 + height} ${x1},${y1 + height} z`;
}
