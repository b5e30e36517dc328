// Two conversations beside each other, equal up to the first turn that differs.

import { type JSX } from "preact";
import { useState } from "preact/hooks";
import { useKeys } from "../keys";
import { useLoaded } from "../load";
import type { CompareView, ComparedRow, ConversationView, EventView } from "../model";
import { href, setQuery, type Place } from "../router";
import { Notice, type PageProps } from "../shell";
import { printable, Text } from "../text";
import { transport } from "../transport";
import { TurnPanel } from "./turn";

type Side = "left" | "right";

/** How many equal rows are shown before the first that differs. */
const EQUAL_SHOWN = 3;

/** `#/compare/17/18?other=SLUG&t=KEY&side=right`. */
export function ComparePage({ place }: PageProps): JSX.Element {
  const [left = "", right = ""] = place.names;
  const other = place.query["other"] ?? "";
  const loaded = useLoaded(() => transport.compare(place.run, left, right, other), [place.run, left, right, other]);
  if (loaded.error)
    return (
      <Notice title="These cannot be compared" tone="bad">
        <p>{printable(loaded.error)}</p>
      </Notice>
    );
  if (!loaded.value) return <Notice title="Loading…" tone="quiet" />;
  return <Compared place={place} view={loaded.value} />;
}

function Compared({ place, view }: { readonly place: Place; readonly view: CompareView }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  const other = place.query["other"] ?? "";
  const turn = place.query["t"] ?? "";
  const side: Side = place.query["side"] === "right" ? "right" : "left";
  const shown = side === "left" ? view.left : view.right;
  const first = view.rows.findIndex((row) => !row.is_equal);
  const equal = first < 0 ? view.rows.length : first;
  const from = isWhole || first < 0 ? 0 : Math.max(0, equal - EQUAL_SHOWN);
  const jump = (): void => document.getElementById("first-difference")?.scrollIntoView({ block: "center" });
  useKeys([{ key: "d", text: "to the first difference", run: jump }]);
  const hrefOf = (of: Side, key: string): string => href({ ...place, query: { ...place.query, t: key, side: of } });
  return (
    <article class={`compare conversation ${turn ? "with-turn" : ""}`}>
      <header class="conversation-head">
        <h1>Two conversations side by side</h1>
        <p class="quiet">
          <Text text={view.reason} />
        </p>
        <p>
          {view.first_turn ? (
            <>
              The first turn that differs is <b><Text text={view.first_turn} /></b>; {equal} events before it are equal.
            </>
          ) : (
            "No turn differs."
          )}
        </p>
      </header>
      <div class="columns">
        <div class="middle">
          <table class="compared">
            <thead>
              <tr>
                <SideHead view={view.left} run={place.run} />
                <SideHead view={view.right} run={other || place.run} />
              </tr>
            </thead>
            <tbody>
              {from > 0 && (
                <tr class="equal-fold">
                  <td colSpan={2}>
                    <button type="button" onClick={() => setWhole(true)}>
                      Show {from} equal events
                    </button>
                  </td>
                </tr>
              )}
              {view.rows.slice(from).map((row, number) => (
                <Row key={number + from} row={row} view={view} isFirst={number + from === first} hrefOf={hrefOf} turn={turn} side={side} />
              ))}
            </tbody>
          </table>
        </div>
        {turn && (
          <TurnPanel
            run={side === "right" ? other || place.run : place.run}
            name={place.names[side === "left" ? 0 : 1] ?? ""}
            turn={turn}
            seat=""
            conversation={shown.index}
            command={shown.command ?? ""}
            hrefOf={(key) => hrefOf(side, key)}
            onClose={() => setQuery({ t: "", side: "" })}
          />
        )}
      </div>
    </article>
  );
}

function SideHead({ view, run }: { readonly view: ConversationView; readonly run: string }): JSX.Element {
  const facts = (view.facts ?? []).filter((fact) => fact.text.length <= 90);
  return (
    <th scope="col">
      <a href={href({ run, page: "c", names: [view.task_id] })}>
        <Text text={view.task_id} />
      </a>
      {view.status !== "finished" && <b class={`badge status-${view.status}`}>{view.status}</b>}
      <p class="quiet">
        {facts.map((fact) => `${printable(fact.name)}: ${printable(fact.text)}`).join(" · ")}
      </p>
      {view.fork && (
        <p class="quiet">
          Fork at <Text text={view.fork.turn} />, arm <Text text={view.fork.arm} />, draw {view.fork.draw}
        </p>
      )}
    </th>
  );
}

interface RowProps {
  readonly row: ComparedRow;
  readonly view: CompareView;
  readonly isFirst: boolean;
  readonly hrefOf: (side: Side, key: string) => string;
  readonly turn: string;
  readonly side: Side;
}

function Row({ row, view, isFirst, hrefOf, turn, side }: RowProps): JSX.Element {
  return (
    <>
      {isFirst && (
        <tr class="first-difference" id="first-difference">
          <th scope="rowgroup" colSpan={2}>
            From here on they differ
          </th>
        </tr>
      )}
      <tr class={row.is_equal ? "is-equal" : "differs"}>
        {(["left", "right"] as const).map((of) => {
          const at = row[of];
          const event = at === null ? undefined : view[of].events[at];
          const isCurrent = side === of && turn !== "" && event?.turn === turn;
          return (
            <td key={of} class={isCurrent ? "is-current" : undefined}>
              {event && <ComparedEvent event={event} hrefOf={(key) => hrefOf(of, key)} />}
            </td>
          );
        })}
      </tr>
    </>
  );
}

function ComparedEvent({ event, hrefOf }: { readonly event: EventView; readonly hrefOf: (key: string) => string }): JSX.Element {
  return (
    <div class="event-body">
      <span class="quiet when">
        {event.turn ? <a href={hrefOf(event.turn)}>{event.place}</a> : event.place} <Text text={event.when} />
        {event.audience && ` · only ${printable(event.audience.join(", "))}`}
      </span>
      {event.thought && (
        <p class="thought">
          <span class="thought-label">thought</span> <Text text={event.thought} />
        </p>
      )}
      <p class="event-text">
        <Text text={event.text} />
      </p>
    </div>
  );
}
