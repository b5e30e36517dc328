// Refuses what would make text of a model more than text, or break the pages' Content-Security-Policy.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join, relative } from "node:path";

const REFUSED = [
  [/\b(inner|outer)HTML\b/, "markup from a text"],
  [/dangerouslySetInnerHTML/, "markup from a text"],
  [/insertAdjacentHTML|document\s*\.\s*write|DOMParser|createContextualFragment|setHTML/, "markup from a text"],
  [/\beval\s*\(|new\s+Function\b|set(Timeout|Interval)\s*\(\s*["'`]/, "code from a text"],
  [/\bsrcdoc\b|javascript:/, "a page or code from a text"],
  [/\bstyle\s*=\s*["'`]|setAttribute\s*\(\s*["'`](style|on)/, "a style or handler as text; give style an object"],
  [/https?:\/\/(?!www\.w3\.org\/2000\/svg)/, "an address of another host"],
  [/:\s*any\b|\bas\s+any\b|@ts-(ignore|nocheck)/, "an unchecked type"],
];

const root = fileURLToPath(new URL(".", import.meta.url));
const src = join(root, "src");
const files = readdirSync(src, { recursive: true })
  .map(String)
  .filter((name) => /\.(tsx?|css)$/.test(name))
  .sort();
let count = 0;
for (const name of files) {
  const lines = readFileSync(join(src, name), "utf8").split("\n");
  lines.forEach((line, place) => {
    for (const [pattern, what] of REFUSED) {
      if (pattern.test(line)) {
        console.error(`${relative(root, join(src, name))}:${place + 1}: ${what}: ${line.trim()}`);
        count += 1;
      }
    }
  });
}
process.exit(count ? 1 : 0);
