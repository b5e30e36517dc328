// What all pages have: the head with links, the state of the connection, the help.
import { type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { KeyTable, useKeys } from "./keys";
import type { RunPage } from "./model";
import { href, type PageName, type Place } from "./router";
import { Text } from "./text";

/** What every page gets. `page` is the run that `place` names. */
export interface PageProps {
  readonly place: Place;
  readonly page: RunPage;
}

/** The frame of a page. `help` stands below the keys in its help. */
export function Shell(props: {
  place: Place;
  page: RunPage | null;
  isConnected: boolean;
  help?: ComponentChildren;
  children: ComponentChildren;
}): JSX.Element {
  const { place, page } = props;
  const [isHelp, setHelp] = useState(false);
  useKeys([{ key: "?", text: "show this help", run: () => setHelp(true) }]);
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="head">
        <nav aria-label="Pages">
          <a class="home" href={href({})}>
            mac_runner
          </a>
          {place.run && <a href={href({})}>All combinations</a>}
          {page && (
            <PageLink place={place} page="run">
              <Text text={page.name} />
            </PageLink>
          )}
          {page && !page.combinations?.length && (
            <PageLink place={place} page="engines">
              Engines
            </PageLink>
          )}
        </nav>
        <span class="head-end">
          {page?.is_sample && <span class="badge">sample</span>}
          {!props.isConnected && <span class="badge warn">not connected</span>}
          <button type="button" onClick={() => setHelp(true)} aria-haspopup="dialog" title="Help (?)">
            ?
          </button>
        </span>
      </header>
      <main id="main" tabIndex={-1}>
        {props.children}
      </main>
      {isHelp && <Help onClose={() => setHelp(false)}>{props.help}</Help>}
    </>
  );
}

function PageLink(props: { place: Place; page: PageName; children: ComponentChildren }): JSX.Element {
  const { place, page } = props;
  const isHere = place.page === page;
  return (
    <a href={href({ run: place.run, page })} aria-current={isHere ? "page" : undefined}>
      {props.children}
    </a>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function Help(props: { onClose: () => void; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => ref.current?.showModal(), []);
  return (
    <dialog ref={ref} class="help" aria-labelledby="help-title" onClose={props.onClose}>
      <form method="dialog">
        <h2 id="help-title">Help</h2>
        <button type="submit" aria-label="Close the help">
          ×
        </button>
      </form>
      <h3>Keys</h3>
      <KeyTable />
      {props.children}
    </dialog>
  );
}

/** A state of a page in place of its content: loading, empty, an error. */
export function Notice(props: { title: string; tone?: "bad" | "quiet"; children?: ComponentChildren }): JSX.Element {
  return (
    <section class={`notice ${props.tone ?? ""}`} role={props.tone === "bad" ? "alert" : "status"}>
      <h1>{props.title}</h1>
      {props.children}
    </section>
  );
}
