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

/** The participants by seat; each name opens the conversation as that seat saw it. */
export function Roster(props: RosterProps) {
  const models = new Set(props.members.map((member) => member.model ?? ""));
  return (
    <section class="roster" aria-labelledby="roster-head">
      <h2 id="roster-head">Participants</h2>
      <ul>
        {props.members.map((member) => (
          <Seat key={member.seat} member={member} roster={props} showsModel={models.size > 1} />
        ))}
      </ul>
      {models.size === 1 && props.members[0]?.model && (
        <p class="quiet">
          All by the model <Text text={props.members[0].model} />
        </p>
      )}
    </section>
  );
}

interface SeatProps {
  readonly member: Member;
  readonly roster: RosterProps;
  readonly showsModel: boolean;
}

function Seat({ member, roster, showsModel }: SeatProps) {
  const [first, ...others] = lastFacts(knownAt(member.facts, roster.place));
  const name = <Text text={member.name} />;
  return (
    <li class={member.name === roster.seat ? "is-seat" : undefined}>
      <span class="number">{member.seat}</span>
      <span class="member">
        {roster.seats.includes(member.name) ? (
          <a href={roster.seatHref(member.name)} title={printable(`As ${member.name} saw it`)}>
            {name}
          </a>
        ) : (
          name
        )}{" "}
        {first && <FactText fact={first} />}
      </span>
      <span class="more">
        {others.map((fact) => (
          <FactText key={fact.name} fact={fact} />
        ))}
        {showsModel && member.model && <FactText fact={{ name: "model", text: member.model, tone: "quiet" }} />}
      </span>
    </li>
  );
}

/** The last fact of each name, in the order in which the names first come. */
function lastFacts(facts: readonly Fact[]): readonly Fact[] {
  const last = new Map<string, Fact>();
  for (const fact of facts) last.set(fact.name, fact);
  return [...last.values()];
}

/** A fact; its name is shown where the text is only a number. */
function FactText({ fact }: { readonly fact: Fact }) {
  const isNumber = /^[\d.,\s%+-]*$/.test(fact.text);
  return (
    <span class={`fact tone-${fact.tone ?? "plain"}`} title={printable(`${fact.name}: ${fact.text}`)}>
      <span class={isNumber ? "quiet" : "hidden-text"}>
        <Text text={fact.name} />{" "}
      </span>
      <Text text={fact.text} />
    </span>
  );
}
