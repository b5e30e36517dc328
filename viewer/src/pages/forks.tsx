// The forks of a conversation: its turns as a line, and the arms that leave it with what became of them.

import { type JSX } from "preact";
import { useLoaded } from "../load";
import type { ForkArm, ForkTree } from "../model";
import { href } from "../router";
import { Notice, type PageProps } from "../shell";
import { printable, Text } from "../text";
import { transport } from "../transport";

const AXIS = 220;

/** `#/forks/17`; without a number the forks of all parents. */
export function ForksPage({ place }: PageProps): JSX.Element {
  const name = place.names[0] ?? "";
  const loaded = useLoaded(() => transport.forks(place.run, name), [place.run, name]);
  if (loaded.error)
    return (
      <Notice title="The forks cannot be shown" tone="bad">
        <p>{printable(loaded.error)}</p>
      </Notice>
    );
  if (!loaded.value) return <Notice title="Loading…" tone="quiet" />;
  if (loaded.value.length === 0)
    return (
      <Notice title="There are no forks here">
        <p>
          <code>mac-run fork RUN GAME --turn TURN --out DIR</code> plays a conversation again from one of its turns on.
          View the directory that it writes.
        </p>
      </Notice>
    );
  return (
    <article class="forks">
      <h1>Forks</h1>
      {loaded.value.map((tree) => (
        <Tree key={tree.parent} tree={tree} run={place.run} />
      ))}
    </article>
  );
}

function Tree({ tree, run }: { readonly tree: ForkTree; readonly run: string }): JSX.Element {
  const turns = [...new Set(tree.arms.map((arm) => arm.turn))].sort(byRound);
  const figure = tree.arms.find((arm) => arm.figure)?.figure ?? "";
  return (
    <section class="fork-tree">
      <h2>
        <Text text={tree.parent} />
      </h2>
      <p class="quiet">
        {figure ? (
          <>
            Each arm shows <b><Text text={figure} /></b> with its 95 % interval. A number opens the draw beside its parent.
          </>
        ) : (
          "A number opens the draw beside its parent."
        )}
      </p>
      <ol class="trunk">
        {turns.map((turn) => (
          <li key={turn}>
            <h3>
              Turn <Text text={turn} />
            </h3>
            <table class="arms">
              <thead>
                <tr>
                  <th scope="col">Arm</th>
                  <th scope="col">{figure ? <Text text={figure} /> : "Figure"}</th>
                  <th scope="col">
                    <Scale />
                  </th>
                  <th scope="col">Draws</th>
                </tr>
              </thead>
              <tbody>
                {tree.arms
                  .filter((arm) => arm.turn === turn)
                  .map((arm) => (
                    <Arm key={arm.arm} arm={arm} parent={tree.parent} run={run} />
                  ))}
              </tbody>
            </table>
          </li>
        ))}
      </ol>
    </section>
  );
}

function byRound(one: string, other: string): number {
  return new Intl.Collator("en", { numeric: true }).compare(one, other);
}

function Arm(props: { readonly arm: ForkArm; readonly parent: string; readonly run: string }): JSX.Element {
  const { arm, parent, run } = props;
  return (
    <tr>
      <th scope="row">
        <Text text={arm.arm} />
      </th>
      <td class="num">{figureOf(arm)}</td>
      <td>
        <Interval arm={arm} />
      </td>
      <td class="draws">
        {[...arm.draws].sort((one, other) => one - other).map((draw) => (
          <a key={draw} href={href({ run, page: "compare", names: [parent, String(draw)] })}>
            {draw}
          </a>
        ))}
      </td>
    </tr>
  );
}

function figureOf(arm: ForkArm): string {
  if (arm.value == null) return "–";
  const interval = arm.lo == null || arm.hi == null ? "" : ` [${arm.lo.toFixed(2)}, ${arm.hi.toFixed(2)}]`;
  return `${arm.value.toFixed(2)}${interval}`;
}

/** The ends of the scale. */
function Scale(): JSX.Element {
  return (
    <svg class="interval" width={AXIS} height={14} role="img" aria-label="On a scale from 0 to 1">
      {[0, 0.5, 1].map((value) => (
        <text key={value} x={6 + value * (AXIS - 12)} y={11} text-anchor="middle">
          {value}
        </text>
      ))}
    </svg>
  );
}

/** The interval as a line, the value as a dot, on a scale from 0 to 1. */
function Interval({ arm }: { readonly arm: ForkArm }): JSX.Element | null {
  if (arm.value == null) return null;
  const x = (value: number): number => 6 + Math.min(1, Math.max(0, value)) * (AXIS - 12);
  return (
    <svg class="interval" width={AXIS} height={18} aria-hidden="true">
      <line class="axis" x1={x(0)} x2={x(1)} y1={9} y2={9} />
      <line class="axis" x1={x(0.5)} x2={x(0.5)} y1={5} y2={13} />
      {arm.lo != null && arm.hi != null && <line class="range" x1={x(arm.lo)} x2={x(arm.hi)} y1={9} y2={9} />}
      <circle cx={x(arm.value)} cy={9} r={4} />
    </svg>
  );
}
