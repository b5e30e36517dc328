// The page "Flow".
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function FlowPage({ place }: PageProps): JSX.Element {
  return <Notice title="Flow">{place.names.join(" ")}</Notice>;
}
