// The page "Forks".
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function ForksPage({ place }: PageProps): JSX.Element {
  return <Notice title="Forks">{place.names.join(" ")}</Notice>;
}
