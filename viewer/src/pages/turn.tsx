// A turn that is asked for when its panel opens, beside the page it belongs to.

import type { JSX } from "preact";
import { useLoaded } from "../load";
import { transport } from "../transport";
import { Inspector } from "./inspector";

interface TurnPanelProps {
  readonly run: string;
  /** The conversation as the place names it: a number or a task id. */
  readonly name: string;
  readonly turn: string;
  readonly seat: string;
  readonly conversation: number;
  readonly command: string;
  readonly hrefOf: (key: string) => string;
  readonly onClose: () => void;
}

/** The panel of a turn; what is asked of the server has the seat, so a seat gets its own turns alone. */
export function TurnPanel(props: TurnPanelProps): JSX.Element {
  const { run, name, turn, seat } = props;
  const loaded = useLoaded(() => transport.turn(run, name, turn, seat), [run, name, turn, seat]);
  return (
    <aside class="turn-panel" aria-label="Turn" tabIndex={0}>
      {loaded.value ? (
        <Inspector
          turn={loaded.value}
          conversation={props.conversation}
          command={props.command}
          hrefOf={props.hrefOf}
          onClose={props.onClose}
        />
      ) : (
        <>
          <button type="button" class="close" onClick={props.onClose} aria-label="Close the turn">
            ✕
          </button>
          <p class={loaded.error ? "bad" : "quiet"} role="status">
            {loaded.error || "Loading…"}
          </p>
        </>
      )}
    </aside>
  );
}
