// Who takes part, and what is known of each as of the current event.

import type { Fact, Member } from "../model";
import { printable, Text } from "../text";
import { knownAt } from "./scene";

interface RosterProps {
  readonly members: readonly Member[];
  readonly seats: readonly string[];
  /** The current event; null shows the end. */
  readonly place: number | null;
  /** Whose view it is; empty for the whole. */
  readonly seat: string;
  readonly seatHref: (seat: string) => string;
}

/** A table of the participants; each name opens the conversation as that seat saw it. */
export function Roster({ members, seats, place, seat, seatHref }: RosterProps) {
  const names = [...new Set(members.flatMap((member) => (member.facts ?? []).map((fact) => fact.name)))];
  const models = new Set(members.map((member) => member.model ?? ""));
  const showsModel = members.some((member) => member.model) && models.size > 1;
  return (
    <section class="roster" aria-labelledby="roster-head">
      <h2 id="roster-head">Participants</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">Seat</th>
            {names.map((name) => (
              <th scope="col" key={name}>
                <Text text={name} />
              </th>
            ))}
            {showsModel && <th scope="col">Model</th>}
          </tr>
        </thead>
        <tbody>
          {members.map((member) => {
            const known = knownAt(member.facts, place);
            return (
              <tr key={member.seat} class={member.name === seat ? "is-seat" : undefined}>
                <th scope="row">
                  <span class="number">{member.seat}</span>{" "}
                  {seats.includes(member.name) ? (
                    <a href={seatHref(member.name)} title={printable(`As ${member.name} saw it`)}>
                      <Text text={member.name} />
                    </a>
                  ) : (
                    <Text text={member.name} />
                  )}
                </th>
                {names.map((name) => (
                  <td key={name}>
                    <FactText facts={known.filter((fact) => fact.name === name)} />
                  </td>
                ))}
                {showsModel && (
                  <td class="quiet">
                    <Text text={member.model ?? ""} />
                  </td>
                )}
              </tr>
            );
          })}
        </tbody>
      </table>
      {!showsModel && members[0]?.model && (
        <p class="quiet">
          All seats: <Text text={members[0].model} />
        </p>
      )}
    </section>
  );
}

/** The last of some facts of one name; those before it are in its title. */
function FactText({ facts }: { readonly facts: readonly Fact[] }) {
  const last = facts[facts.length - 1];
  if (!last) return null;
  const before = facts.map((fact) => fact.text).filter((text) => text !== last.text);
  return (
    <span
      class={`fact tone-${last.tone ?? "plain"}`}
      title={printable([last.text, before.length && `before: ${before.join(", ")}`].filter(Boolean).join("; "))}
    >
      <Text text={last.text} />
    </span>
  );
}
