// Bundles src/ into the crate that embeds it. `--check` builds into memory and compares with what is committed there.
import { build } from "esbuild";
import { readFile, writeFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const dist = here("../crates/gapless-page/src/dist/");
const LIMIT = 163_000;

// Names of our own, long and frequent, that neither the browser nor the report's JSON knows: shortened in the bundle.
const own =
  /^(rects|detail|lastTick|forever|colorBy|hovered|selected|setCursor|setView|tickAt|xAt|timeAt|timeX|schedule|litStack|hiddenKinds|searching|expandable|largest|reveal|zoomTo|remark|recolor|aliveAt|latestEnds|peakAt|stacks|streams|pools|addr|freed|requested|deviceReport|deviceIndex|colorKey|colorOf|palette|legend|moving|stepAt|address|namedBy|modules|moduleOf|tables|scopes|pieces|segments|groups|groupsAt|litStack|describe|accent|muted|surface|whole|found|renderer|uniforms|lastWheelElsewhere|firstPicture|restTimer|listeners|sizeSwatch|holderMatcher|matcher|boxOrCross|outline|overlay|pointer|dirty|boxes|signed|recency|deviceIndex|complete|sorted|emit|hover|cursorTick|collect|drawNow|drawChosen|siblings|chosen|showTip|hideTip|pickAt|tickOfTime|containing|moved|light|least|marks|colors|lanes|depths|ruler|axes|curve|peak|device|reserved|allocated|theme|kinds|active|cursor|holder|element|number|string|runs|query|start|end|view|axis|timed|select|search|reset|pan|block|schedule|small|spare|schedule|drag|field|requested|setAxis|piece|segment|ceiling|heights|levels|heads|worth|looks|highest|lowest|places|packed|span|segmentOf|byAddress|inverted|zoomed|wholeWay|deviceFree|moduleColors|painted|failure|around|orderChoice|ofChoice|byChoice|segmentTitle|schedule|rebuild|describe|surfaceOf|collect|toggleTheme)$/;
const shared = { bundle: true, minify: true, write: false, charset: "utf8", legalComments: "none", logLevel: "warning" };
const [code, style] = await Promise.all([
  build({ ...shared, entryPoints: [here("src/main.ts")], format: "iife", target: "es2022", mangleProps: own }),
  build({ ...shared, entryPoints: [here("src/page.css")] }),
]);
/** Shaders keep one line break, after their version; comments and indentation go. */
function shaders(text) {
  return text.replace(/#version 300 es[^`]*/g, (source) => {
    const [version, ...lines] = source.split("\n");
    return version + "\n" + lines.map((line) => line.replace(/\/\/.*/, "").trim()).join(" ").replace(/\s*([-+*\/=<>?:,;(){}|&])\s*/g, "$1");
  });
}
const files = {
  // A script element ends at the first "</script": the code may hold none.
  "page.js": shaders(code.outputFiles[0].text.trimEnd()).replaceAll("</script", "<\\/script"),
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
