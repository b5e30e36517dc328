// Keys: a page binds some while it is shown, and `?` lists all that are bound.
import { type JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** A key, as KeyboardEvent.key names it, with what it does in words. */
export interface Binding {
  readonly key: string;
  readonly text: string;
  run(): void;
}

const bound: (readonly Binding[])[] = [];

/** Binds keys while the component is shown; those of an inner component go before. */
export function useKeys(bindings: readonly Binding[]): void {
  const latest = useRef(bindings);
  latest.current = bindings;
  // With the drawing itself: keys of what is seen work, and those of what is gone do not.
  useLayoutEffect(() => {
    // The functions may change with each drawing; their keys are bound once.
    const live = bindings.map(({ key, text }, place) => ({ key, text, run: () => latest.current[place]?.run() }));
    bound.push(live);
    return () => void bound.splice(bound.indexOf(live), 1);
  }, [bindings.map(({ key }) => key).join(" ")]);
}

/** All bindings of now, inner ones first. */
export function bindings(): readonly Binding[] {
  return [...bound].reverse().flat();
}

/** Calls what is bound to the keys of the page, except in fields and with modifiers. */
export function followKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isField(event.target)) return;
    const binding = bindings().find(({ key }) => key === event.key);
    if (!binding) return;
    event.preventDefault();
    binding.run();
  });
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(input|textarea|select)$/i.test(target.tagName));
}

/** The list of keys of the page; `children` adds what else helps there. */
export function KeyTable(): JSX.Element {
  return (
    <table class="plain keys">
      <thead>
        <tr>
          <th scope="col">Key</th>
          <th scope="col">Action</th>
        </tr>
      </thead>
      <tbody>
        {bindings().map(({ key, text }) => (
          <tr>
            <td>
              <kbd>{key === " " ? "space" : key}</kbd>
            </td>
            <td>{text}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
