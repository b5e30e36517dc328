// Builds the pages into mac_runner/viewer/static: one classic script and one stylesheet, the same bytes each time.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const BYTES_MAX = 150_000;
const here = fileURLToPath(new URL(".", import.meta.url));

const result = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: "../mac_runner/viewer/static",
  bundle: true,
  format: "iife",
  target: "es2022",
  // The stylesheet goes out as it is written: lowering would undo light-dark().
  supported: { nesting: true },
  minify: true,
  charset: "ascii",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  metafile: true,
  logLevel: "warning",
});

const sizes = Object.entries(result.metafile.outputs).map(([path, { bytes }]) => [path, bytes]);
for (const [path, bytes] of sizes) console.log(`${path}: ${bytes} bytes`);
const total = sizes.reduce((sum, [, bytes]) => sum + bytes, 0);
if (total > BYTES_MAX) {
  console.error(`the pages have ${total} bytes; at most ${BYTES_MAX} are allowed`);
  process.exit(1);
}
