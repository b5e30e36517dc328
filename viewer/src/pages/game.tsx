// The page "Conversation".
import { type JSX } from "preact";
import { Notice, type PageProps } from "../shell";

export function ConversationPage({ place }: PageProps): JSX.Element {
  return <Notice title="Conversation">{place.names.join(" ")}</Notice>;
}
