// A page that shows an answer: the headline takes the place of the allocator's figures.

import { test, after, before } from "node:test";
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { launch, open, subject } from "./browser.mjs";

const headline = {
  title: "does not fit on <b>x</b>: 5.00 GiB of 4.00 GiB",
  tone: "bad",
  tiles: [
    { name: "Process total", value: "5.00 GiB", note: "with context", strong: true },
    { name: "Peak allocated", value: "4.50 GiB", note: "± 2 %", strong: false },
  ],
  bar: { parts: [{ name: "weights", bytes: 4 * 2 ** 30 }, { name: "context", bytes: 2 ** 30 }], limit: 4 * 2 ** 30, of: "x" },
  lists: [{ title: "Plans", columns: ["#", "plan"], rows: [["1", "micro-batch 1"]] }],
  notes: ["nothing cheaper fits"],
};

let browser;
let html;
before(async () => {
  browser = await launch();
  html = subject().html;
});
after(() => browser.close());

/** The page with `more` in its report, in a file beside it. */
function changed(name, change) {
  const text = readFileSync(html, "utf8");
  const [, json] = text.match(/id="report">(.*?)<\/script>/s);
  const report = JSON.parse(json);
  change(report);
  const path = html.replace(".html", `.${name}.html`);
  writeFileSync(path, text.replace(json, () => JSON.stringify(report).replaceAll("<", "\\u003c")));
  return path;
}

test("an answer is shown in the place of figures", async () => {
  const { page, said, context } = await open(browser, changed("answer", (report) => Object.assign(report, { headline, findings: [] })));
  assert.equal(await page.locator("#answer h2").textContent(), headline.title);
  assert.deepEqual(await page.locator("#answer .figure dt").allTextContents(), ["Process total", "Peak allocated"]);
  assert.equal(await page.locator("#answer .bar i").count(), 2);
  assert.match(await page.locator("#answer").textContent(), /▲ x ends here/);
  assert.deepEqual(await page.locator("#answer tbody td").allTextContents(), ["1", "micro-batch 1"]);
  assert.equal(await page.locator("#figure-fragmentation, #findings").count(), 0);
  assert.equal(await page.locator("#timeline").isVisible(), true);
  assert.deepEqual(said, []);
  await context.close();
});

test("an answer without a step is a page without a timeline", async () => {
  const { page, said, context } = await open(browser, changed("bare", (report) => Object.assign(report, { headline, findings: [], devices: [] })));
  assert.equal(await page.locator("#answer h2").isVisible(), true);
  assert.equal(await page.locator("#timeline").isVisible(), false);
  assert.equal(await page.locator(".failed").isVisible(), false);
  assert.deepEqual(said, []);
  await context.close();
});
