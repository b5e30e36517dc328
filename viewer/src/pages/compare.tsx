// The page "Compare".
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function ComparePage({ place }: PageProps): JSX.Element {
  return <Notice title="Compare">{place.names.join(" ")}</Notice>;
}
