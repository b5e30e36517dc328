// The panel of a turn: what was sent, what came back, what became of it.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Piece, TokenView, TurnHead, TurnView } from "../model";
import { printable, Text } from "../text";
import { duration, shellWord } from "./scene";

type Tab = "reply" | "prompt" | "difference" | "tokens";

interface InspectorProps {
  readonly turn: TurnView;
  /** The number of the conversation, and its directory for commands; empty in what is published. */
  readonly conversation: number;
  readonly command: string;
  readonly hrefOf: (key: string) => string;
  readonly onClose: () => void;
}

/** All that is recorded of a turn, in tabs. */
export function Inspector({ turn, conversation, command, hrefOf, onClose }: InspectorProps) {
  const [wanted, setTab] = useState<Tab>("reply");
  const tabs = tabsOf(turn);
  const tab = tabs.some(([name]) => name === wanted) ? wanted : "reply";
  return (
    <div class="inspector">
      <header>
        <h2>
          Turn <Text text={turn.key} />
        </h2>
        <button type="button" class="close" onClick={onClose} aria-label="Close the turn">
          ✕
        </button>
      </header>
      <p class="turn-result">
        <b class={`result result-${turn.result}`}>{printable(turn.result) || "no result"}</b>{" "}
        {turn.detail !== turn.said && <Text text={turn.detail} />}
      </p>
      {turn.cause && (
        <p class="cause">
          Why: <Text text={turn.cause} />
        </p>
      )}
      <Siblings siblings={turn.siblings ?? []} current={turn.key} hrefOf={hrefOf} />
      <div class="tabs" role="tablist" aria-label="Parts of the turn">
        {tabs.map(([name, label]) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={name === tab}
            aria-controls="turn-part"
            tabIndex={name === tab ? 0 : -1}
            onClick={() => setTab(name)}
            onKeyDown={(event) => setTab(tabByKey(tabs, tab, event) ?? tab)}
          >
            {label}
          </button>
        ))}
      </div>
      <div id="turn-part" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {tab === "reply" && <Reply turn={turn} />}
        {tab === "prompt" && <Prompt turn={turn} />}
        {tab === "difference" && <Difference pieces={turn.difference ?? []} previous={turn.previous ?? ""} />}
        {tab === "tokens" && <Heat tokens={turn.tokens ?? []} />}
      </div>
      <Numbers turn={turn} />
      {command && <Commands turn={turn} conversation={conversation} command={command} />}
    </div>
  );
}

function tabsOf(turn: TurnView): readonly (readonly [Tab, string])[] {
  const tabs: (readonly [Tab, string])[] = [
    ["reply", "Reply"],
    ["prompt", "Prompt"],
  ];
  if (turn.difference?.length) tabs.push(["difference", "New in the prompt"]);
  if (turn.tokens?.length) tabs.push(["tokens", "Log-probabilities"]);
  return tabs;
}

/** The tab that an arrow key moves to; the focus goes with it. */
function tabByKey(tabs: readonly (readonly [Tab, string])[], tab: Tab, event: KeyboardEvent): Tab | null {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by === undefined) return null;
  event.preventDefault();
  const at = tabs.findIndex(([name]) => name === tab);
  const next = tabs[(at + by + tabs.length) % tabs.length]![0];
  document.getElementById(`tab-${next}`)?.focus();
  return next;
}

/** Attempts and tool steps of the same occasion; nothing where the turn was the only one. */
function Siblings(props: {
  readonly siblings: readonly TurnHead[];
  readonly current: string;
  readonly hrefOf: (key: string) => string;
}) {
  if (props.siblings.length < 2) return null;
  return (
    <nav class="siblings" aria-label="Attempts and tool steps">
      <ol>
        {props.siblings.map((head) => (
          <li key={head.key}>
            <a href={props.hrefOf(head.key)} aria-current={head.key === props.current ? "true" : undefined}>
              <b class={`result result-${head.result}`}>{printable(head.result)}</b> <Text text={clip(head.detail, 60)} />
            </a>
          </li>
        ))}
      </ol>
    </nav>
  );
}

function clip(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function Reply({ turn }: { readonly turn: TurnView }) {
  const hasMore = turn.reply !== turn.said;
  return (
    <>
      {turn.thought && (
        <Part name="Thought">
          <p class="thought">
            <Text text={turn.thought} />
          </p>
        </Part>
      )}
      {turn.said && (
        <Part name={hasMore ? "Said" : "Reply"}>
          <Block text={turn.said} />
        </Part>
      )}
      {hasMore && (
        <Part name="Reply as it came">
          <Block text={turn.reply} />
        </Part>
      )}
      {!turn.reply && !turn.said && <p class="empty">The reply is empty.</p>}
    </>
  );
}

function Prompt({ turn }: { readonly turn: TurnView }) {
  if (!turn.prompt?.length) return <p class="empty"><Text text={turn.prompt_missing || "No prompt was recorded."} /></p>;
  return (
    <>
      {turn.prompt.map((message, number) => (
        <Part key={number} name={message.role}>
          <Block text={message.content} />
        </Part>
      ))}
    </>
  );
}

const FOLD = 400;

/** The prompt against the one before of the same seat; long unchanged stretches are folded. */
function Difference({ pieces, previous }: { readonly pieces: readonly Piece[]; readonly previous: string }) {
  return (
    <>
      <p class="quiet">
        Against the prompt of turn <Text text={previous} />.
      </p>
      <div class="block difference">
        {pieces.map((piece, number) =>
          piece.kind === "new" ? (
            <ins key={number}>
              <Text text={piece.text} />
            </ins>
          ) : piece.kind === "gone" ? (
            <del key={number}>
              <Text text={piece.text} />
            </del>
          ) : (
            <Same key={number} text={piece.text} isFirst={number === 0} isLast={number === pieces.length - 1} />
          ),
        )}
      </div>
    </>
  );
}

function Same({ text, isFirst, isLast }: { readonly text: string; readonly isFirst: boolean; readonly isLast: boolean }) {
  const [isOpen, setOpen] = useState(false);
  if (isOpen || text.length <= FOLD) return <Text text={text} />;
  const head = isFirst ? "" : text.slice(0, FOLD / 4);
  const tail = isLast ? "" : text.slice(-FOLD / 4);
  const count = text.length - head.length - tail.length;
  return (
    <>
      {head && <Text text={head} />}
      <button type="button" class="fold" onClick={() => setOpen(true)}>
        {count.toLocaleString("en")} unchanged characters
      </button>
      {tail && <Text text={tail} />}
    </>
  );
}

/** Tokens coloured by how unlikely they were; the same as a table. */
function Heat({ tokens }: { readonly tokens: readonly TokenView[] }) {
  const total = tokens.reduce((sum, token) => sum + token.logprob, 0);
  return (
    <>
      <p class="quiet">
        {tokens.length} tokens, {total.toFixed(2)} nats in all. The darker, the less likely.
      </p>
      <p class="block heat">
        {tokens.map((token, number) => (
          <span key={number} class={`heat-${heatOf(token.logprob)}`} title={chance(token.logprob)}>
            <Text text={token.text} />
          </span>
        ))}
      </p>
      <details>
        <summary>As a table</summary>
        <table class="token-table">
          <thead>
            <tr>
              <th scope="col">Token</th>
              <th scope="col">Probability</th>
              <th scope="col">Log-probability</th>
            </tr>
          </thead>
          <tbody>
            {tokens.map((token, number) => (
              <tr key={number}>
                <td>
                  <Text text={token.text} />
                </td>
                <td class="number">{Math.exp(token.logprob).toFixed(3)}</td>
                <td class="number">{token.logprob.toFixed(3)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </>
  );
}

/** 0 for a sure token, 5 for one of less than a thousandth. */
export function heatOf(logprob: number): number {
  const bounds = [-0.05, -0.35, -1, -2.3, -6.9];
  const found = bounds.findIndex((bound) => logprob >= bound);
  return found < 0 ? bounds.length : found;
}

function chance(logprob: number): string {
  return `probability ${Math.exp(logprob).toPrecision(3)}, log-probability ${logprob.toFixed(3)}`;
}

function Numbers({ turn }: { readonly turn: TurnView }) {
  const cached = turn.cached_tokens ? ` (${turn.cached_tokens.toLocaleString("en")} cached)` : "";
  const rows: (readonly [string, string])[] = [
    ["Agent", turn.agent],
    ["Model", turn.model],
    ["Prompt", `${turn.prompt_tokens.toLocaleString("en")} tokens${cached}`],
    ["Reply", `${turn.completion_tokens.toLocaleString("en")} tokens`],
    ["Waited", turn.queue_s == null ? "" : duration(turn.queue_s)],
    ["Generated", turn.generate_s == null ? "" : duration(turn.generate_s)],
    ["Ended by", turn.finish_reason],
    ...Object.entries(turn.sampling ?? {}),
  ];
  return (
    <>
      <dl class="numbers">
        {rows
          .filter(([, text]) => text)
          .map(([name, text]) => (
            <div key={name}>
              <dt>{printable(name)}</dt>
              <dd>
                <Text text={text} />
              </dd>
            </div>
          ))}
      </dl>
      {(turn.faults ?? []).length > 0 && (
        <Part name="Faults before the reply">
          <ol class="faults">
            {turn.faults!.map((fault, number) => (
              <li key={number}>
                <Text text={fault} />
              </li>
            ))}
          </ol>
        </Part>
      )}
    </>
  );
}

function Commands(props: { readonly turn: TurnView; readonly conversation: number; readonly command: string }) {
  const run = shellWord(props.command);
  const key = shellWord(props.turn.key);
  const out = shellWord(`${props.command}-fork`);
  return (
    <Part name="Commands">
      <Copy label="Draw again from here" text={`mac-run fork ${run} ${props.conversation} --turn ${key} --out ${out}`} />
      <Copy label="Print the prompt" text={`mac-run show ${run} ${props.conversation} --prompt ${key}`} />
    </Part>
  );
}

/** A command with a button that copies it. */
export function Copy({ label, text }: { readonly label: string; readonly text: string }) {
  const [isCopied, setCopied] = useState(false);
  useEffect(() => {
    if (!isCopied) return undefined;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [isCopied]);
  return (
    <div class="copy">
      <code>{printable(text)}</code>
      <button type="button" onClick={() => void copied(text).then(setCopied)} aria-label={`Copy: ${label}`}>
        {isCopied ? "copied" : "copy"}
      </button>
    </div>
  );
}

/** Copies a text; false where the browser does not let the page. */
async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function Part({ name, children }: { readonly name: string; readonly children: ComponentChildren }) {
  return (
    <section class="part">
      <h3>{printable(name)}</h3>
      {children}
    </section>
  );
}

function Block({ text }: { readonly text: string }) {
  return (
    <p class="block">
      <Text text={text} />
    </p>
  );
}
