// The page of a run: its head, its engines, the list of its conversations. Of a grid: its combinations.
import { type JSX } from "preact";
import type { Fact, RunPage } from "../model";
import { href } from "../router";
import type { PageProps } from "../shell";
import { Text } from "../text";
import { Conversations } from "./conversations";
import { EngineStrip } from "./engine_strip";
import { Combinations } from "./grid";
import { Pairs } from "./pairs";

export function RunOverview({ place, page }: PageProps): JSX.Element {
  const isCountedElsewhere = place.run !== "" && page.engines.every(({ requests }) => !requests);
  return (
    <div class="run">
      <RunHead page={page} />
      {page.facts?.length ? <Facts facts={page.facts} /> : null}
      {isCountedElsewhere ? (
        <p class="quiet">
          The combinations of a grid share their engines: <a href={href({})}>their totals</a>,{" "}
          <a href={href({ run: place.run, page: "engines" })}>the engines during this combination</a>.
        </p>
      ) : (
        <EngineStrip engines={page.engines} run={place.run} hasPage={!page.combinations?.length} />
      )}
      {page.combinations?.length ? (
        <>
          <Combinations place={place} page={page} combinations={page.combinations} />
          {page.combinations.length > 1 && <Pairs place={place} combinations={page.combinations} />}
        </>
      ) : (
        <Conversations place={place} page={page} />
      )}
    </div>
  );
}

function RunHead({ page }: { page: RunPage }): JSX.Element {
  return (
    <section class="run-head" aria-label="State of the run">
      <div class="run-title">
        <h1>
          <Text text={page.name} />
        </h1>
        <span class={`state ${page.is_live ? "live" : ""}`}>
          {page.is_live && <span class="dot" aria-hidden="true" />}
          <Text text={page.state} />
        </span>
        {page.environment && <span class="badge">{page.environment.replaceAll("_", " ")}</span>}
      </div>
      {page.description && !page.combinations?.length && (
        <p class="quiet">
          <Text text={page.description} />
        </p>
      )}
      <Progress page={page} />
    </section>
  );
}

function Progress({ page: { planned, done, failed } }: { page: RunPage }): JSX.Element {
  const share = (count: number): string => `${planned ? Math.min(100, (100 * count) / planned) : 0}%`;
  return (
    <div class="progress">
      <div class="bar" aria-hidden="true">
        <span class="bar-done" style={{ width: share(done - failed) }} />
        <span class="bar-failed" style={{ width: share(failed) }} />
      </div>
      <span>
        <b>{count(done)}</b> of {count(planned)} ended
        {failed > 0 && (
          <>
            , <b class="bad">{count(failed)} failed</b>
          </>
        )}
      </span>
    </div>
  );
}

function Facts({ facts }: { facts: readonly Fact[] }): JSX.Element {
  return (
    <dl class="fact-list">
      {facts.map((fact) => (
        <div class={fact.tone === "warn" || fact.text.length > 60 ? "wide" : ""}>
          <dt>
            <Text text={fact.name} />
          </dt>
          <dd class={`tone-${fact.tone ?? "plain"}`}>
            <Text text={fact.text} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** A count with separators. */
export function count(value: number): string {
  return value.toLocaleString("en");
}

export { FilterHelp } from "./filter_field";
