// The page "Engines".
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function EnginesPage({ place }: PageProps): JSX.Element {
  return <Notice title="Engines">{place.names.join(" ")}</Notice>;
}
