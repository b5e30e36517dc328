// How the stances of all chosen discussions flow from round to round, and who moved whom.

import { type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useLoaded } from "../load";
import type { Fact, FlowPage as FlowView } from "../model";
import { setQuery } from "../router";
import { Notice, type PageProps } from "../shell";
import { printable, Text } from "../text";
import { transport } from "../transport";
import { alluvial, type Alluvial } from "./alluvial";
import { counted } from "./scene";
import { TableView } from "./tables";

const TONES = ["one", "two", "three", "four"] as const;

/** `#/flow?only=FILTER`. */
export function FlowPage({ place }: PageProps): JSX.Element {
  const only = place.query["only"] ?? "";
  const loaded = useLoaded(() => transport.flow(place.run, only), [place.run, only]);
  const flow = loaded.value;
  return (
    <article class="flow">
      <h1>How did stances change?</h1>
      <Chosen only={only} />
      {loaded.error ? (
        <p class="bad" role="alert">
          {printable(loaded.error)}
        </p>
      ) : !flow ? (
        <p class="quiet" role="status">
          Loading…
        </p>
      ) : (
        <>
          {flow.flows.length === 0 ? (
            <Notice title="There are no stances to show">
              <p>Only answers to a question whose right answer is known have stances, and only those of two rounds or more a flow.</p>
            </Notice>
          ) : (
            <Flows flow={flow} />
          )}
          {flow.moved && <TableView table={flow.moved} hrefOf={() => ""} />}
        </>
      )}
    </article>
  );
}

/** The filter of the conversations, as on the run page. */
function Chosen({ only }: { readonly only: string }): JSX.Element {
  const [text, setText] = useState(only);
  useEffect(() => setText(only), [only]);
  const choose = (event: Event): void => {
    event.preventDefault();
    setQuery({ only: text.trim() }, { replace: false });
  };
  return (
    <form class="chosen" onSubmit={choose}>
      <label>
        Of conversations{" "}
        <input type="search" size={40} value={text} placeholder="all" onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <button type="submit">Filter</button>
    </form>
  );
}

function Flows({ flow }: { readonly flow: FlowView }): JSX.Element {
  const drawn = alluvial(flow);
  const stayed = flow.flows.filter((one) => one.before === one.after).reduce((sum, one) => sum + one.count, 0);
  const all = flow.flows.reduce((sum, one) => sum + one.count, 0);
  return (
    <>
      <p class="quiet">
        {counted(flow.conversations, "conversation")}, {counted(flow.rounds, "round")}. In {(100 * (1 - stayed / Math.max(all, 1))).toFixed(1)} % of
        the steps from one round to the next a participant changed its stance.
      </p>
      <Diagram drawn={drawn} stances={flow.stances} />
      <FlowTable flow={flow} />
    </>
  );
}

function toneOf(stances: readonly Fact[], name: string): string {
  const at = stances.findIndex((stance) => stance.name === name);
  const tone = stances[at]?.tone ?? "plain";
  return tone === "plain" ? (TONES[at % TONES.length] ?? "plain") : tone;
}

function Diagram({ drawn, stances }: { readonly drawn: Alluvial; readonly stances: readonly Fact[] }): JSX.Element {
  const rounds = [...new Set(drawn.bars.map((bar) => bar.round))];
  const last = rounds[rounds.length - 1];
  return (
    <figure class="alluvial">
      <svg viewBox={`-4 -22 ${drawn.width + 8} ${drawn.height + 28}`} role="img" aria-label="Stances by round; the table below has the same numbers">
        {drawn.bands.map((band, number) => (
          <path key={number} class={`band fill-${toneOf(stances, band.before)} ${band.before === band.after ? "" : "is-change"}`} d={band.path}>
            <title>{printable(`round ${band.round + 1} to ${band.round + 2}: ${band.count} from ${band.before} to ${band.after}`)}</title>
          </path>
        ))}
        {drawn.bars.map((bar, number) => (
          <g key={number}>
            <rect class={`bar fill-${toneOf(stances, bar.stance)}`} x={bar.x} y={bar.y} width={drawn.barWidth} height={bar.height} />
            {bar.height > 14 && (
              <text
                x={bar.round === last ? bar.x - 5 : bar.x + drawn.barWidth + 5}
                y={bar.y + bar.height / 2 + 4}
                text-anchor={bar.round === last ? "end" : "start"}
              >
                {printable(`${bar.stance} ${bar.count}`)}
              </text>
            )}
          </g>
        ))}
        {rounds.map((round) => {
          const bar = drawn.bars.find((one) => one.round === round)!;
          return (
            <text key={round} class="round-label" x={bar.x + (round === last ? drawn.barWidth : 0)} y={-8} text-anchor={round === last ? "end" : "start"}>
              Round {round + 1}
            </text>
          );
        })}
      </svg>
      <figcaption class="legend">
        {stances.map((stance) => (
          <span key={stance.name} class={`key tone-${toneOf(stances, stance.name)}`}>
            <Text text={stance.name} /> {stance.text !== stance.name && <Text text={stance.text} />}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

function FlowTable({ flow }: { readonly flow: FlowView }): JSX.Element {
  return (
    <details>
      <summary>As a table</summary>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">From round</th>
            <th scope="col">Before</th>
            <th scope="col">After</th>
            <th scope="col" class="num">
              Participants
            </th>
          </tr>
        </thead>
        <tbody>
          {flow.flows.map((one, number) => (
            <tr key={number}>
              <td>{one.round}</td>
              <td>
                <Text text={one.before} />
              </td>
              <td>
                <Text text={one.after} />
              </td>
              <td class="num">{one.count}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}
