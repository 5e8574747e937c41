// Colours stay apart in pairs, for readers without one of the three kinds of cones too (Machado, Oliveira and
// Fernandes, 2009, at full severity), and no two parts of a page share one.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildSync } from "esbuild";
import { fileURLToPath } from "node:url";
import { launch, open } from "./browser.mjs";
import { pageOf } from "./pages.mjs";

const LEAST = 0.05;
const SIGHTS = {
  "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  "no long cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  "no middle cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  "no short cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function oklab([r, g, b]) {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s, 0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s];
}

function seen(rgb, sight) {
  const linear = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return oklab(SIGHTS[sight].map((row) => Math.min(1, Math.max(0, row.reduce((sum, part, k) => sum + part * linear[k], 0)))));
}

/** Asserts that the colours differ in pairs for every sight. */
function assertApart(colors) {
  const names = Object.keys(colors);
  for (const sight of Object.keys(SIGHTS)) {
    names.forEach((a, i) =>
      names.slice(i + 1).forEach((b) => {
        const [p, q] = [seen(colors[a], sight), seen(colors[b], sight)];
        const apart = Math.hypot(...p.map((v, k) => v - q[k]));
        assert.ok(apart > LEAST, `${a} and ${b} are ${apart.toFixed(3)} apart with ${sight}`);
      }),
    );
  }
}

const { outputFiles } = buildSync({ entryPoints: [fileURLToPath(new URL("../src/colors.ts", import.meta.url))], bundle: true, write: false, format: "esm" });
const { kindColor, moduleColors, streamColor } = await import(`data:text/javascript,${encodeURIComponent(outputFiles[0].text)}`);

const rgbOf = (css) => css.match(/\d+/g).slice(0, 3).map(Number);

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

test("twenty colours of any kind stay apart", () => {
  const kinds = ["weights", "gradients", "optimizer state", "activations", "temporaries", "unexplained"];
  const parts = [...kinds, ...Array.from({ length: 14 }, (_, i) => `part ${i}`)];
  assertApart(Object.fromEntries(parts.map((name) => [name, kindColor(name)])));
  assertApart(Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`stream ${i}`, streamColor(i)])));
  assertApart(Object.fromEntries([...moduleColors(Array.from({ length: 19 }, (_, i) => `src/model_${i}.py`))]));
});

test("more modules and streams than that still have different colours", () => {
  const different = (colors) => new Set(colors.map(String)).size === colors.length;
  assert.ok(different(Array.from({ length: 60 }, (_, i) => streamColor(i).map(Math.round))));
  assert.ok(different([...moduleColors(Array.from({ length: 90 }, (_, i) => `m${i}.py`)).values()].map((c) => c.map(Math.round))));
});

test("a module keeps its colour in another report, unless a larger one has it", () => {
  const [one, other] = [moduleColors(["a/x.py", "b/y.py"]), moduleColors(["a/x.py", "c/z.py", "b/y.py"])];
  assert.deepEqual(one.get("a/x.py"), other.get("a/x.py"));
});

test("no two parts of a fit page share a colour, and parts of the bar look as they do in the timeline", async () => {
  const { page, said, context } = await open(browser, pageOf("fit"));
  const colors = await page.evaluate(() => {
    const found = {};
    for (const item of document.querySelectorAll("#answer .composition li")) {
      const swatch = item.querySelector(".swatch");
      if (!swatch.classList.contains("free")) found[item.childNodes[1].textContent] = getComputedStyle(swatch).backgroundColor;
    }
    return found;
  });
  assert.ok(Object.keys(colors).length >= 8, Object.keys(colors).join());
  const legend = await page.locator("button.key").evaluateAll((keys) => keys.map((key) => [key.dataset.kind, getComputedStyle(key.querySelector(".swatch")).backgroundColor]));
  for (const [kind, color] of legend) assert.equal(colors[kind] ?? color, color, `${kind} has one colour`);
  assertApart(Object.fromEntries([...Object.entries(colors), ...legend].map(([name, color]) => [name, rgbOf(color)])));
  for (const by of ["module", "size"]) {
    await page.locator(`.choice[aria-label="Colour"] button[data-value="${by}"]`).click();
    const shown = await page.locator(".legend .key .swatch:not(.line)").evaluateAll((all) => all.map((one) => getComputedStyle(one).backgroundColor));
    assert.equal(new Set(shown).size, shown.length, `colours by ${by}`);
  }
  assert.deepEqual(said, []);
  await context.close();
});
