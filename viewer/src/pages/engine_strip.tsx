// The engines of a run in a line each.
import { type JSX } from "preact";
import type { EngineView } from "../model";
import { href } from "../router";
import { Text } from "../text";

export function EngineStrip(props: { engines: readonly EngineView[]; run: string; hasPage: boolean }): JSX.Element | null {
  if (props.engines.length === 0) return null;
  return (
    <section class="engines-strip" aria-labelledby="engines-title">
      <h2 id="engines-title">
        {props.hasPage ? <a href={href({ run: props.run, page: "engines" })}>Engines</a> : "Engines"}
      </h2>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Table of engines">
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Backend</th>
              <th scope="col" class="num">
                Slots
              </th>
              <th scope="col" class="num">
                Requests
              </th>
              <th scope="col" class="num">
                Retries
              </th>
              <th scope="col" class="num">
                Mean latency
              </th>
              <th scope="col" class="num">
                Prompt tokens
              </th>
              <th scope="col" class="num">
                Cached
              </th>
              <th scope="col" class="num">
                Completion tokens
              </th>
            </tr>
          </thead>
          <tbody>
            {props.engines.map((engine) => (
              <tr>
                <th scope="row">
                  <Text text={engine.model} />
                </th>
                <td title={engine.address || undefined}>{engine.backend}</td>
                <td class="num">{engine.slots || "–"}</td>
                <td class="num">{whole(engine.requests)}</td>
                <td class={`num ${engine.retries ? "warn" : ""}`}>{whole(engine.retries)}</td>
                <td class="num">{engine.latency_s == null ? "–" : seconds(engine.latency_s)}</td>
                <td class="num">{whole(engine.prompt_tokens)}</td>
                <td class="num">{cachedShare(engine)}</td>
                <td class="num">{whole(engine.completion_tokens)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function whole(value: number | undefined): string {
  return (value ?? 0).toLocaleString("en");
}

function cachedShare({ cached_tokens, prompt_tokens }: EngineView): string {
  return prompt_tokens ? `${Math.round((100 * (cached_tokens ?? 0)) / prompt_tokens)} %` : "–";
}

/** A duration with its unit. */
export function seconds(value: number): string {
  if (value < 1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return `${Number((value / 3600).toPrecision(3))} h`;
}
