// The page of the engines: what each did over the time of the run.
import { type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ClassChart, duration, TimeChart, type TimeSeries } from "../charts";
import { useLoaded } from "../load";
import type { EngineSeries, EnginesPage as Engines } from "../model";
import { Notice, type PageProps } from "../shell";
import { printable, Text } from "../text";
import { transport } from "../transport";
import { seconds } from "./engine_strip";

export function EnginesPage({ place, page }: PageProps): JSX.Element {
  const loaded = useLoaded(() => transport.engines(place.run), [place.run]);
  const [live, setLive] = useState<{ run: string; engines: Engines } | null>(null);
  useEffect(
    () => transport.listen(place.run, { engines: (engines) => setLive({ run: place.run, engines }) }),
    [place.run],
  );
  const engines = live?.run === place.run ? live.engines : loaded.value;
  if (!engines) {
    if (!loaded.error) return <Notice title="Loading…" tone="quiet" />;
    return (
      <Notice title="The engines cannot be shown" tone="bad">
        <p>{loaded.error}</p>
      </Notice>
    );
  }
  return (
    <div class="engines-page">
      <div class="run-title">
        <h1>
          Engines of <Text text={page.name} />
        </h1>
        <span class={`state ${page.is_live ? "live" : ""}`}>
          {page.is_live && <span class="dot" aria-hidden="true" />}
          <Text text={page.state} />
        </span>
      </div>
      <p class="quiet">
        {duration(engines.elapsed_s) || "0 s"} at work
        {engines.sessions.length > 1 && ` in ${engines.sessions.length} sessions; ▲ marks where one begins`}. Each point is the mean of{" "}
        {seconds(engines.bin_s)}.
      </p>
      {engines.engines.length === 0 && <p class="state-line quiet">No request has been sent yet.</p>}
      {engines.engines.map((engine, place) => (
        <Engine
          key={engine.model}
          engine={engine}
          engines={engines}
          used={page.engines.find(({ model }) => model === engine.model)?.slots_used}
          title={`engine-${place}`}
        />
      ))}
    </div>
  );
}

interface EngineProps {
  readonly engine: EngineSeries;
  readonly engines: Engines;
  readonly used: number | null | undefined; // The part of all slot time; a combination of a grid has none of its own.
  readonly title: string;
}

function Engine({ engine, engines, used, title }: EngineProps): JSX.Element {
  const binS = engines.bin_s;
  const marks = engines.sessions.slice(1).map((at, place) => ({ at, text: `Session ${place + 2} begins` }));
  const over = (values: readonly number[], unit: string, kind: "steps" | "bars" = "steps"): TimeSeries => ({ values, binS, kind, unit, marks });
  const retries = engine.retries.reduce((sum, value) => sum + value, 0);
  return (
    <section class="engine" aria-labelledby={title}>
      <h2 id={title}>
        <Text text={engine.model} />
      </h2>
      <EngineFacts engine={engine} retries={retries} used={used} />
      <div class="charts">
        <TimeChart title="How many requests were in flight?" series={{ ...over(engine.busy, "requests in flight"), limit: engine.slots }} />
        <TimeChart title="How many tokens came back per second?" series={over(perSecond(engine.tokens, engines), "completion tokens per second")} />
        <TimeChart title="How many replies came back per second?" series={over(perSecond(engine.done, engines), "replies per second")} />
        {retries > 0 && <TimeChart title="When were requests sent again?" series={over(engine.retries, "retries", "bars")} />}
        <Latency engine={engine} />
      </div>
      <AsTable engine={engine} binS={binS} />
    </section>
  );
}

function perSecond(values: readonly number[], { bin_s, elapsed_s }: Engines): number[] {
  const seconds = Math.min(bin_s, elapsed_s) || bin_s; // A run may be shorter than a bin.
  return values.map((value) => (value ? value / seconds : 0));
}

function EngineFacts({ engine, retries, used }: Pick<EngineProps, "engine" | "used"> & { retries: number }): JSX.Element {
  const replies = engine.done.reduce((sum, value) => sum + value, 0);
  const mean = engine.busy.length ? engine.busy.reduce((sum, value) => sum + value, 0) / engine.busy.length : 0;
  const facts: [string, string][] = [
    ["replies", replies.toLocaleString("en")],
    ["requests in flight", `${round(mean)}`],
    ["slots in use", used == null ? "–" : `${Math.round(100 * used)} %`],
    ["tokens per second", engine.tokens_per_s == null ? "–" : round(engine.tokens_per_s).toLocaleString("en")],
    ["latency p50 / p95", `${milliseconds(engine.latency_p50_ms)} / ${milliseconds(engine.latency_p95_ms)}`],
    ["queue p50 / p95", `${queue(engine.queue_p50_s)} / ${queue(engine.queue_p95_s)}`],
    ["prompt tokens from cache", engine.cached_share == null ? "–" : `${Math.round(100 * engine.cached_share)} %`],
    ["retries", retries.toLocaleString("en")],
  ];
  return (
    <dl class="fact-list">
      {facts.map(([name, text]) => (
        <div>
          <dt>{name}</dt>
          <dd>{text}</dd>
        </div>
      ))}
    </dl>
  );
}

function round(value: number): number {
  return Number(value.toPrecision(3));
}

function milliseconds(value: number | null | undefined): string {
  return value == null ? "–" : seconds(value / 1000);
}

function queue(value: number | null | undefined): string {
  return value == null ? "–" : seconds(value);
}

function Latency({ engine }: { engine: EngineSeries }): JSX.Element | null {
  if (!engine.latency_counts?.some(Boolean)) return null;
  const marks = [
    { value: engine.latency_p50_ms, name: "p50" },
    { value: engine.latency_p95_ms, name: "p95" },
  ].flatMap(({ value, name }) => (value == null ? [] : [{ value, text: `${name} ${milliseconds(value)}` }]));
  return (
    <ClassChart
      title="How long did a reply take?"
      bounds={engine.latency_bounds_ms ?? []}
      counts={engine.latency_counts}
      bound={(value) => milliseconds(value)}
      unit="replies"
      marks={marks}
    />
  );
}

/** The same numbers for those who cannot read a chart, and to copy. */
function AsTable({ engine, binS }: { engine: EngineSeries; binS: number }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {isOpen && (
        <div class="scroll-x bounded" tabIndex={0} role="region" aria-label={`${printable(engine.model)} over time`}>
          <table class="plain">
            <thead>
              <tr>
                {["from", "requests in flight", "replies", "completion tokens", "retries"].map((name) => (
                  <th scope="col" class="num">
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {engine.busy.map((busy, bin) => (
                <tr>
                  <th scope="row" class="num">
                    {duration(bin * binS) || "0 s"}
                  </th>
                  <td class="num">{round(busy)}</td>
                  <td class="num">{engine.done[bin]}</td>
                  <td class="num">{engine.tokens[bin]}</td>
                  <td class="num">{engine.retries[bin]}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}
