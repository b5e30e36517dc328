// The page of a run.
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function RunOverview({ page }: PageProps): JSX.Element {
  return <Notice title={page.name}>{page.state}</Notice>;
}

export function FilterHelp(): JSX.Element {
  return <h3>Filter</h3>;
}
