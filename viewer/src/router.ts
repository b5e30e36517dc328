// Places of the pages as hash routes: `#/`, `#/c/17?e=60`, `#/r/SLUG/c/17`.
import { useEffect, useMemo, useState } from "preact/hooks";

export type PageName = "run" | "c" | "compare" | "forks" | "engines" | "flow" | "unknown";

const PAGES: readonly string[] = ["c", "compare", "forks", "engines", "flow"];

/** Where the reader is. `run` is the slug of a combination of a grid; empty for the run itself. */
export interface Place {
  readonly run: string;
  readonly page: PageName;
  /** What follows the name of the page, such as the number of a conversation. */
  readonly names: readonly string[];
  readonly query: Readonly<Record<string, string>>;
}

/** The place that a hash names. One that cannot be read has the page `unknown`. */
export function parsePlace(hash: string): Place {
  const [path = "", search = ""] = split(hash.replace(/^#\/?/, ""));
  const query: Record<string, string> = Object.create(null);
  for (const [name, value] of new URLSearchParams(search)) query[name] = value;
  try {
    const names = path.split("/").filter(Boolean).map(decodeURIComponent);
    const run = names[0] === "r" && names.length > 1 ? names.splice(0, 2)[1]! : "";
    const page = names.shift();
    if (page === undefined) return { run, page: "run", names: [], query };
    return { run, page: PAGES.includes(page) ? (page as PageName) : "unknown", names, query };
  } catch {
    return { run: "", page: "unknown", names: [], query };
  }
}

function split(text: string): string[] {
  const at = text.indexOf("?");
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

/** The hash of a place. A part of the query that is empty is left out. */
export function href(place: Partial<Place>): string {
  const names = [place.run ? `r/${encodeURIComponent(place.run)}` : "", place.page === "run" ? "" : (place.page ?? "")];
  const path = [...names, ...(place.names ?? []).map(encodeURIComponent)].filter(Boolean).join("/");
  const query = new URLSearchParams(Object.entries(place.query ?? {}).filter(([, value]) => value !== ""));
  return `#/${path}${query.size ? `?${query}` : ""}`;
}

/** Goes to a place. With `replace` the back button skips the place before it. */
export function go(place: Partial<Place>, how: { replace?: boolean } = {}): void {
  const hash = href(place);
  if (hash === window.location.hash) return;
  if (how.replace) {
    window.history.replaceState(null, "", hash);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    window.location.hash = hash;
  }
}

/** Changes parts of the query and stays on the page; an empty value removes its part. */
export function setQuery(changes: Readonly<Record<string, string>>, how: { replace?: boolean } = { replace: true }): void {
  const place = parsePlace(window.location.hash);
  go({ ...place, query: { ...place.query, ...changes } }, how);
}

/** The place where the reader is; a change draws the page again. */
export function usePlace(): Place {
  const [hash, setHash] = useState(() => window.location.hash);
  useEffect(() => {
    const follow = (): void => setHash(window.location.hash);
    window.addEventListener("hashchange", follow);
    follow(); // The hash may have changed between the first drawing and this.
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  return useMemo(() => parsePlace(hash), [hash]);
}
