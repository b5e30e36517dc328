// Text that a model, a participant or a file wrote, shown as text and nothing else.
import { type ComponentChild, type JSX } from "preact";
import { useState } from "preact/hooks";

/** Characters that are not visible, as mac_runner/printable.py has them, less those that lay out a text. */
const UNSAFE = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const FOLDED_CHARS = 20_000;

/** A character as its escape in Python. */
export function escaped(char: string): string {
  const code = char.codePointAt(0) ?? 0;
  const hex = code.toString(16);
  if (code === 13) return "\\r";
  if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

/** The same text with each character that is not visible as its escape: for titles and attributes. */
export function printable(text: string): string {
  return text.replace(UNSAFE, escaped);
}

/** The text as nodes; characters that are not visible are marked escapes. */
export function pieces(text: string): ComponentChild[] {
  const found: ComponentChild[] = [];
  let from = 0;
  for (const match of text.matchAll(UNSAFE)) {
    if (match.index > from) found.push(text.slice(from, match.index));
    found.push(<span class="escape">{escaped(match[0])}</span>);
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

/** A text from outside. Its reading direction is its own, and a very long one is folded. */
export function Text({ text, class: name = "" }: { text: string; class?: string }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  const isFolded = !isWhole && text.length > FOLDED_CHARS;
  return (
    <span class={`text ${name}`} dir="auto">
      {pieces(isFolded ? text.slice(0, FOLDED_CHARS) : text)}
      {isFolded && (
        <button type="button" class="fold" onClick={() => setWhole(true)}>
          show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </span>
  );
}
