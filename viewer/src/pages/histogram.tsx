// How a number is spread over the conversations, with a brush that narrows the list to a range.
import { type JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { NumberValues, numberText, type Rows } from "../columns";

const BINS_MAX = 32;
const WIDTH = 320;
const HEIGHT = 56;
const FOOT = 14;

/** Bins of equal width; `bounds` has one more entry than there are bins. Whole numbers get bins of whole numbers. */
export interface Bins {
  readonly bounds: readonly number[];
  readonly isWhole: boolean;
  /** Of all rows, and of the chosen ones. */
  readonly all: Int32Array;
  readonly chosen: Int32Array;
}

/** The bins of a column; null where it has fewer than two values. */
export function binsOf(rows: Rows, column: string, chosen: Int32Array): Bins | null {
  const column_values = rows.column(column);
  if (!(column_values instanceof NumberValues)) return null;
  const values = column_values.values;
  let [low, high, isWhole] = [Infinity, -Infinity, true];
  for (const value of values) {
    if (Number.isNaN(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    isWhole &&= Number.isInteger(value);
  }
  if (!(high > low)) return null;
  const width = isWhole ? Math.max(1, niceWidth((high - low + 1) / BINS_MAX, true)) : niceWidth((high - low) / BINS_MAX, false);
  const first = Math.floor(low / width);
  const count = Math.floor(high / width) - first + 1;
  const bounds = Array.from({ length: count + 1 }, (_, place) => Number(((first + place) * width).toPrecision(12)));
  const [all, some] = [new Int32Array(count), new Int32Array(count)];
  const bin = (value: number): number => Math.min(count - 1, Math.max(0, Math.floor(value / width) - first));
  for (const value of values) if (!Number.isNaN(value)) all[bin(value)]! += 1;
  for (const row of chosen) {
    const value = values[row]!;
    if (!Number.isNaN(value)) some[bin(value)]! += 1;
  }
  return { bounds, isWhole, all, chosen: some };
}

function niceWidth(least: number, isWhole: boolean): number {
  const power = 10 ** Math.floor(Math.log10(least));
  const width = [1, 2, 5, 10].map((step) => step * power).find((one) => one >= least * 0.999) ?? least;
  return isWhole ? Math.ceil(width) : width;
}

/** The range of the bins `from` to `to`, both included, as conditions of the filter. */
export function rangeTerms(column: string, bins: Bins, from: number, to: number): string[] {
  const isAll = from === 0 && to === bins.all.length - 1;
  if (isAll) return [];
  const [low, high] = [bins.bounds[from]!, bins.bounds[to + 1]!];
  return [`${column}>=${low}`, bins.isWhole ? `${column}<=${high - 1}` : `${column}<${high}`];
}

/** `range` is what the filter says of the column: the first and the last bin. */
export function Histogram(props: {
  column: string;
  bins: Bins;
  range: readonly [number, number];
  onRange: (from: number, to: number) => void;
}): JSX.Element {
  const { column, bins, range } = props;
  const svg = useRef<SVGSVGElement>(null);
  const [drag, setDrag] = useState<readonly [number, number] | null>(null);
  // Pointer events may come faster than the page is drawn.
  const held = useRef<readonly [number, number] | null>(null);
  const hold = (next: readonly [number, number] | null): void => {
    held.current = next;
    setDrag(next);
  };
  const count = bins.all.length;
  const [from, to] = drag ? [Math.min(...drag), Math.max(...drag)] : range;
  const most = Math.max(1, ...bins.all);
  const step = WIDTH / count;
  const at = (event: PointerEvent): number => {
    const box = svg.current?.getBoundingClientRect();
    if (!box) return 0;
    return Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - box.left) / box.width) * count)));
  };
  const top = (value: number): number => HEIGHT * (1 - value / most);
  return (
    <figure class="histogram">
      <svg
        ref={svg}
        viewBox={`0 0 ${WIDTH} ${HEIGHT + FOOT}`}
        role="group"
        aria-label={`How often each value of ${column} occurs; two handles choose a range`}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          hold([at(event), at(event)]);
        }}
        onPointerMove={(event) => held.current && hold([held.current[0], at(event)])}
        onPointerUp={() => {
          if (held.current) props.onRange(Math.min(...held.current), Math.max(...held.current));
          hold(null);
        }}
        onPointerCancel={() => hold(null)}
        onDblClick={() => props.onRange(0, count - 1)}
      >
        {Array.from(bins.all, (value, place) => (
          <g class={place >= from && place <= to ? "bin" : "bin out"}>
            <title>{`${label(bins, place)}: ${bins.chosen[place]} of ${value}`}</title>
            <rect class="bin-hit" x={place * step} y={0} width={step} height={HEIGHT} />
            <rect class="bin-all" x={place * step + 0.5} width={Math.max(1, step - 1)} y={top(value)} height={HEIGHT - top(value)} />
            <rect
              class="bin-chosen"
              x={place * step + 0.5}
              width={Math.max(1, step - 1)}
              y={top(bins.chosen[place]!)}
              height={HEIGHT - top(bins.chosen[place]!)}
            />
          </g>
        ))}
        <line class="axis" x1={0} x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
        <text x={0} y={HEIGHT + 11}>
          {numberText(bins.bounds[0]!)}
        </text>
        <text x={WIDTH} y={HEIGHT + 11} class="end">
          {numberText(bins.isWhole ? bins.bounds[count]! - 1 : bins.bounds[count]!)}
        </text>
        <Handle name={`Least ${column}`} bins={bins} bin={from} side={0} onMove={(bin) => props.onRange(Math.min(bin, to), to)} />
        <Handle name={`Greatest ${column}`} bins={bins} bin={to} side={1} onMove={(bin) => props.onRange(from, Math.max(bin, from))} />
      </svg>
    </figure>
  );
}

function label(bins: Bins, place: number): string {
  const [low, high] = [bins.bounds[place]!, bins.bounds[place + 1]!];
  if (!bins.isWhole) return `${numberText(low)} to ${numberText(high)}`;
  return high - low === 1 ? numberText(low) : `${numberText(low)} to ${numberText(high - 1)}`;
}

const STEPS: Readonly<Record<string, number>> = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 5, PageDown: -5 };

function Handle(props: { name: string; bins: Bins; bin: number; side: 0 | 1; onMove: (bin: number) => void }): JSX.Element {
  const count = props.bins.all.length;
  const x = (props.bin + props.side) * (WIDTH / count);
  const follow = (event: KeyboardEvent): void => {
    const wanted =
      event.key === "Home" ? 0 : event.key === "End" ? count - 1 : Object.hasOwn(STEPS, event.key) ? props.bin + STEPS[event.key]! : null;
    if (wanted === null) return;
    event.preventDefault();
    event.stopPropagation();
    props.onMove(Math.max(0, Math.min(count - 1, wanted)));
  };
  return (
    <rect
      class="handle"
      x={Math.max(0, Math.min(WIDTH - 3, x - 1.5))}
      y={0}
      width={3}
      height={HEIGHT}
      tabindex={0}
      role="slider"
      aria-label={props.name}
      aria-orientation="horizontal"
      aria-valuemin={0}
      aria-valuemax={count - 1}
      aria-valuenow={props.bin}
      aria-valuetext={label(props.bins, props.bin)}
      onKeyDown={follow}
    />
  );
}
