// Small charts over time, drawn as SVG at the width of the page.
import { type JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { numberText } from "./columns";

const HEIGHT = 96;
const LEFT = 52;
const FOOT = 18;
const TOP = 6;

/** A line over bins of equal width. `limit` is drawn as a line of its own, such as the number of slots. */
export interface TimeSeries {
  readonly values: readonly number[];
  readonly binS: number;
  readonly kind: "steps" | "bars";
  readonly unit: string;
  readonly limit?: number;
  /** Seconds on the axis at which something began. */
  readonly marks?: readonly { readonly at: number; readonly text: string }[];
}

/** The width of an element, followed. */
export function useWidth(): [ref: { current: HTMLDivElement | null }, width: number] {
  const ref = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    if (!ref.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.round(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** The title asks what the chart answers; the reading under the pointer stands beside it. */
export function TimeChart({ title, series }: { title: string; series: TimeSeries }): JSX.Element {
  const [ref, width] = useWidth();
  const [at, setAt] = useState<number | null>(null);
  const { values, binS, unit } = series;
  const inner = Math.max(40, width - LEFT - 8);
  const most = niceTop(Math.max(series.limit ?? 0, ...values));
  const x = (bin: number): number => LEFT + (inner * bin) / Math.max(1, values.length);
  const y = (value: number): number => TOP + (HEIGHT - TOP) * (1 - value / most);
  const total = values.length * binS;
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <span class="reading" aria-hidden="true">
          {at !== null && values[at] !== undefined && `${duration(at * binS)}: ${numberText(round(values[at]))} ${unit}`}
        </span>
      </figcaption>
      <div ref={ref}>
        <svg
          width={width}
          height={HEIGHT + FOOT}
          role="img"
          aria-label={`${title} ${summary(values, unit)}`}
          onPointerMove={(event) => {
            const box = event.currentTarget.getBoundingClientRect();
            const bin = Math.floor(((event.clientX - box.left - LEFT) / inner) * values.length);
            setAt(bin >= 0 && bin < values.length ? bin : null);
          }}
          onPointerLeave={() => setAt(null)}
        >
          {levels(most, series.kind === "bars").map((value) => (
            <>
              <line class="grid" x1={LEFT} x2={LEFT + inner} y1={y(value)} y2={y(value)} />
              <text class="end" x={LEFT - 6} y={y(value) + 4}>
                {numberText(value)}
              </text>
            </>
          ))}
          {series.kind === "bars" ? (
            values.map((value, bin) => value > 0 && <rect class="mass" x={x(bin)} width={Math.max(1, inner / values.length - 0.5)} y={y(value)} height={y(0) - y(value)} />)
          ) : (
            <>
              <path class="mass soft" d={steps(values, x, y, true)} />
              <path class="curve" d={steps(values, x, y, false)} />
            </>
          )}
          {series.limit !== undefined && series.limit > 0 && (
            <>
              <line class="limit" x1={LEFT} x2={LEFT + inner} y1={y(series.limit)} y2={y(series.limit)} />
              <title>{`${series.limit} slots`}</title>
            </>
          )}
          {(series.marks ?? []).map((mark) => (
            <g class="mark">
              <title>{mark.text}</title>
              <line x1={x(mark.at / binS)} x2={x(mark.at / binS)} y1={TOP} y2={HEIGHT} />
              <path d={`M${x(mark.at / binS)} ${HEIGHT} l-4 6 h8 z`} />
            </g>
          ))}
          {timeTicks(total, inner).map((time) => (
            <text class={time === 0 ? "" : x(time / binS) > LEFT + inner - 24 ? "end" : "middle"} x={x(time / binS)} y={HEIGHT + 15}>
              {duration(time)}
            </text>
          ))}
          {at !== null && <line class="cross" x1={x(at + 0.5)} x2={x(at + 0.5)} y1={TOP} y2={HEIGHT} />}
        </svg>
      </div>
    </figure>
  );
}

/** Where lines across are drawn; counts get whole numbers. */
function levels(most: number, isCount: boolean): number[] {
  return isCount && most % 2 ? [0, most] : [0, most / 2, most];
}

function steps(values: readonly number[], x: (bin: number) => number, y: (value: number) => number, isClosed: boolean): string {
  const line = values.map((value, bin) => `${bin ? "L" : "M"}${x(bin).toFixed(1)} ${y(value).toFixed(1)}H${x(bin + 1).toFixed(1)}`).join("");
  return isClosed ? `${line}V${y(0)}H${x(0)}Z` : line;
}

function summary(values: readonly number[], unit: string): string {
  if (values.length === 0) return "Nothing was measured.";
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return `Mean ${numberText(round(mean))}, greatest ${numberText(round(Math.max(...values)))} ${unit}.`;
}

function round(value: number): number {
  return Number(value.toPrecision(3));
}

/** The least round number that is not below a value. */
export function niceTop(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.9999) ?? 10) * power;
}

const TICKS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];

function timeTicks(total: number, width: number): number[] {
  const most = Math.max(1, Math.floor(width / 90));
  const step = TICKS_S.find((one) => total / one <= most) ?? total;
  return Array.from({ length: Math.floor(total / step) + 1 }, (_, place) => Number((place * step).toPrecision(6)));
}

/** Seconds of an axis in the units of a clock. */
export function duration(value: number): string {
  if (value < 60) return `${Number(value.toPrecision(3))} s`;
  const [hours, minutes, seconds] = [Math.floor(value / 3600), Math.floor((value % 3600) / 60), Math.round(value % 60)];
  const parts = [hours && `${hours} h`, minutes && `${minutes} min`, !hours && seconds && `${seconds} s`];
  return parts.filter(Boolean).join(" ");
}

/** Counts in classes with upper bounds, such as latencies; the last class has no bound. */
export function ClassChart(props: {
  title: string;
  bounds: readonly number[];
  counts: readonly number[];
  bound: (value: number) => string;
  unit: string;
  marks: readonly { readonly value: number; readonly text: string }[];
}): JSX.Element {
  const [ref, width] = useWidth();
  const { bounds, counts } = props;
  const from = Math.max(0, counts.findIndex(Boolean));
  const to = counts.findLastIndex(Boolean) + 1;
  const shown = counts.slice(from, to);
  const inner = Math.max(40, width - LEFT - 8);
  const most = niceTop(Math.max(0, ...shown));
  const x = (place: number): number => LEFT + (inner * place) / Math.max(1, shown.length);
  const y = (value: number): number => TOP + (HEIGHT - TOP) * (1 - value / most);
  const every = Math.max(1, Math.ceil(shown.length / Math.max(1, Math.floor(inner / 64))));
  return (
    <figure class="chart">
      <figcaption>
        <h3>{props.title}</h3>
      </figcaption>
      <div ref={ref}>
        <svg width={width} height={HEIGHT + FOOT} role="img" aria-label={`${props.title} ${props.marks.map(({ text }) => text).join(", ")}`}>
          {[0, most].map((value) => (
            <>
              <line class="grid" x1={LEFT} x2={LEFT + inner} y1={y(value)} y2={y(value)} />
              <text class="end" x={LEFT - 6} y={y(value) + 4}>
                {numberText(value)}
              </text>
            </>
          ))}
          {shown.map((value, place) => (
            <g>
              <title>{`${bounds[from + place] === undefined ? "more" : `up to ${props.bound(bounds[from + place]!)}`}: ${value} ${props.unit}`}</title>
              <rect class="mass" x={x(place) + 0.5} width={Math.max(1, inner / shown.length - 1)} y={y(value)} height={y(0) - y(value)} />
            </g>
          ))}
          {shown.map(
            (_, place) =>
              place % every === 0 &&
              bounds[from + place] !== undefined && (
                <text class="middle" x={x(place + 1)} y={HEIGHT + 15}>
                  {props.bound(bounds[from + place]!)}
                </text>
              ),
          )}
          {props.marks.map((mark, number) => {
            const place = within(bounds, mark.value) - from;
            const isLeft = number === 0 || x(place) > LEFT + inner - 80;
            return (
              <g class="mark">
                <title>{mark.text}</title>
                <line x1={x(place)} x2={x(place)} y1={TOP} y2={HEIGHT} />
                <text class={isLeft ? "end" : ""} x={x(place) + (isLeft ? -4 : 4)} y={TOP + 9 + 12 * number}>
                  {mark.text}
                </text>
              </g>
            );
          })}
        </svg>
      </div>
    </figure>
  );
}

/** Where a value lies among the classes, with a fraction by the logarithm. */
function within(bounds: readonly number[], value: number): number {
  const place = bounds.findIndex((bound) => bound >= value);
  if (place < 0) return bounds.length;
  const [low, high] = [bounds[place - 1] ?? bounds[place]! / 2, bounds[place]!];
  const share = low > 0 && high > low && value > low ? Math.log(value / low) / Math.log(high / low) : 0;
  return place + Math.min(1, Math.max(0, share));
}
