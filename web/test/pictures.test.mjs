// The pictures of the report in docs/images: this test takes them, and fails when they no longer show the page.
//
// A picture cannot be compared pixel by pixel, because fonts differ between machines. So a fingerprint lies beside the
// pictures: the words and the structure that are on the screen, the page's style sheet, and what the timeline drew.
// When one of them changes, the test fails and names the command that takes the pictures again: `cargo xtask pictures`.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, open, subject } from "./browser.mjs";

const images = fileURLToPath(new URL("../../docs/images/", import.meta.url));
const SIZE = { width: 1280, height: 690 };
const LIMIT = 150_000;
const taking = process.env.GAPLESS_PICTURES === "take";

let browser;
let html;
before(async () => {
  ({ html } = subject());
  browser = await launch();
});
after(() => browser?.close());

/** The timeline at the peak, with the largest allocation that has a stack selected. */
async function timeline(colorScheme) {
  const first = await open(browser, html, "", { colorScheme, viewport: SIZE });
  const selected = await first.page.evaluate(() => {
    const at = window.gapless.cursor;
    let [best, size] = [0, 0];
    for (let i = 0; i < window.gapless.allocations; i++) {
      const own = window.gapless.allocation(i);
      if (own.stack > 0 && own.start <= at && at < own.end && own.block > size) [best, size] = [i, own.block];
    }
    return best;
  });
  await first.context.close();
  const { page, context } = await open(browser, html, `s=${selected}`, { colorScheme, viewport: SIZE });
  await page.evaluate(async () => {
    await document.fonts.ready;
    window.scrollTo(0, document.getElementById("timeline").offsetTop - 60);
    for (let frame = 0; frame < 10; frame++) await new Promise(requestAnimationFrame);
  });
  return { page, context };
}

/** What the picture shows, in a form that is the same on every machine. */
async function fingerprint(page) {
  const shown = await page.evaluate(() => {
    const section = document.getElementById("timeline");
    const outline = [];
    const walk = (element, depth) => {
      const words = [...element.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE).map((n) => n.data.trim()).join(" ");
      outline.push(`${" ".repeat(depth)}${element.tagName}.${element.className} ${words.trim()}`);
      for (const child of element.children) walk(child, depth + 1);
    };
    for (const element of [document.querySelector("header"), section]) if (element) walk(element, 0);
    const drawn = [];
    for (let i = 0; i < window.gapless.allocations; i++) {
      const own = window.gapless.allocation(i);
      drawn.push(`${own.x0} ${own.x1} ${own.y} ${own.block} ${own.color}`);
    }
    const style = [...document.querySelectorAll("style")].map((s) => s.textContent).join("\n");
    return { outline: outline.join("\n"), drawn: drawn.join("\n"), style };
  });
  const hash = (text) => createHash("sha256").update(text).digest("hex").slice(0, 16);
  return Object.fromEntries(Object.entries(shown).map(([name, text]) => [name, hash(text)]));
}

test("the pictures of the report show the page as it is", async () => {
  const found = {};
  mkdirSync(images, { recursive: true });
  for (const scheme of ["light", "dark"]) {
    const { page, context } = await timeline(scheme);
    found[`report-${scheme}.png`] = await fingerprint(page);
    if (taking) await page.screenshot({ path: `${images}report-${scheme}.png` });
    await context.close();
  }
  if (taking) writeFileSync(`${images}pictures.json`, JSON.stringify(found, null, 2) + "\n");
  const recorded = JSON.parse(readFileSync(`${images}pictures.json`, "utf8"));
  assert.deepEqual(recorded, found, "the page has changed since its pictures were taken: run `cargo xtask pictures` and commit docs/images");
  for (const name of Object.keys(found)) {
    const { size } = statSync(images + name);
    assert.ok(size < LIMIT, `docs/images/${name} has ${size} bytes, and may have ${LIMIT}`);
  }
});
