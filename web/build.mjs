// Bundles src/ into the crate that embeds it. `--check` builds into memory and compares with what is committed there.
import { build } from "esbuild";
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const dist = here("../crates/gapless-report/src/html/dist/");
const LIMIT = 90_000;

const shared = { bundle: true, minify: true, write: false, charset: "utf8", legalComments: "none", logLevel: "warning" };
const [code, style] = await Promise.all([
  build({ ...shared, entryPoints: [here("src/main.ts")], format: "iife", target: "es2022" }),
  build({ ...shared, entryPoints: [here("src/page.css")] }),
]);
const files = {
  // A script element ends at the first "</script": the code may hold none.
  "page.js": code.outputFiles[0].text.trimEnd().replaceAll("</script", "<\\/script"),
  "page.css": style.outputFiles[0].text.trimEnd(),
  "page.html": await readFile(here("src/page.html"), "utf8"),
};
const size = Object.values(files).reduce((sum, text) => sum + Buffer.byteLength(text), 0);
console.log(`page: ${size} bytes of code, style and markup (at most ${LIMIT})`);
if (size > LIMIT) {
  console.error(`the page is ${size - LIMIT} bytes too large`);
  process.exit(1);
}
if (process.argv.includes("--check")) {
  for (const [name, text] of Object.entries(files)) {
    if ((await readFile(dist + name, "utf8").catch(() => "")) !== text) {
      console.error(`${name} is not what web/src builds to: run \`npm run build\` in web/ and commit the result`);
      process.exit(1);
    }
  }
} else {
  await mkdir(dist, { recursive: true });
  for (const [name, text] of Object.entries(files)) await writeFile(dist + name, text);
}
