// The field of the filter, and its help.
import { type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useKeys } from "../keys";

const PAUSE_MS = 80;

/** Applies what is typed after a short pause; `error` stands beside the field. */
export function FilterField(props: { text: string; error: string; onChange: (text: string) => void }): JSX.Element {
  const [typed, setTyped] = useState(props.text);
  const field = useRef<HTMLInputElement>(null);
  const sent = useRef(props.text);
  useEffect(() => {
    if (props.text === sent.current) return;
    sent.current = props.text;
    setTyped(props.text);
  }, [props.text]);
  useEffect(() => {
    if (typed === sent.current) return;
    const timer = window.setTimeout(() => {
      sent.current = typed;
      props.onChange(typed);
    }, PAUSE_MS);
    return () => window.clearTimeout(timer);
  }, [typed]);
  useKeys([{ key: "/", text: "write a filter", run: () => field.current?.focus() }]);
  return (
    <div class="filter">
      <label class="hidden-text" for="filter">
        Filter
      </label>
      <input
        id="filter"
        ref={field}
        type="search"
        spellcheck={false}
        autocomplete="off"
        placeholder="Filter, such as days>5 status=failed (help: ?)"
        value={typed}
        aria-invalid={props.error ? "true" : undefined}
        aria-describedby="filter-error"
        onInput={(event) => setTyped(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          setTyped("");
          event.currentTarget.blur();
        }}
      />
      <span id="filter-error" class="bad" role="status">
        {props.error}
      </span>
    </div>
  );
}

const EXAMPLES: readonly (readonly [string, string])[] = [
  ["days>5", "a number: = != < <= > >="],
  ["winner=town", "one of its words is this, upper or lower case; != for none"],
  ["winner=town|mafia", "one of several words"],
  ["ending:draw", "contains this text"],
  ["failed", "the status; the name of a yes-or-no column alone means yes"],
  ["jester", "a text in any column of words"],
  ['winner="serial killer"', "quotes keep a space"],
];

/** How a filter is written. */
export function FilterHelp(): JSX.Element {
  return (
    <>
      <h3>Filter</h3>
      <p>Conditions with spaces between; a conversation has to meet all. They mean what they mean to --where.</p>
      <table class="plain">
        <tbody>
          {EXAMPLES.map(([text, meaning]) => (
            <tr>
              <td>
                <code>{text}</code>
              </td>
              <td>{meaning}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p>A conversation without a value in a column meets no condition on it.</p>
    </>
  );
}
