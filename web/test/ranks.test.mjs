// The page of many ranks, and the page that compares two runs: they agree with their JSON, and what they offer works.

import { test, after, before } from "node:test";
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { launch, open } from "./browser.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const RANKS = 64;

let browser;
let html = process.env.RANKS_HTML;
let ranks;
before(async () => {
  if (!html) {
    html = join(mkdtempSync(join(tmpdir(), "gapless-ranks-")), "ranks.html");
    execFileSync("cargo", ["run", "--quiet", "--package", "gapless-report", "--example", "ranks_page", "--", html, String(RANKS)], { cwd: root, stdio: "inherit" });
  }
  ranks = JSON.parse(readFileSync(`${html}.json`, "utf8"));
  browser = await launch();
});
after(() => browser?.close());

/** Tables that are on the page, and not in sight at any scroll. */
const hiddenTables = (page) =>
  page.locator("main table").evaluateAll((all) => all.filter((table) => !table.closest("details:not([open])") && !table.checkVisibility()).map((table) => table.textContent.slice(0, 60)));

const opened = async (options) => {
  const all = await open(browser, html, "", options);
  await all.page.waitForFunction(() => document.documentElement.dataset.ranks !== undefined && window.gapless.resting);
  return all;
};

test("the page of 64 ranks is small and says what its JSON says", async () => {
  assert.ok(statSync(html).size < 10e6, `${statSync(html).size} bytes`);
  const { page, said, context } = await opened();
  assert.equal(await page.textContent("#ranks-worst"), `rank ${ranks.worst_rank}`);
  assert.equal(await page.textContent("#ranks-odd"), String(ranks.odd_ranks.length));
  assert.equal(ranks.odd_ranks[0].why, "leak");
  const [first] = await page.locator("#odd .headline").allTextContents();
  assert.ok(first.startsWith(`Rank ${ranks.odd_ranks[0].rank}: `), first);
  const rows = await page.locator(".rank-table tbody tr").allTextContents();
  assert.equal(rows.length, ranks.ranks.length);
  assert.ok(rows.at(-1).includes("the file ends at byte 7"), "a rank that cannot be read is a row");
  // Every figure of the table is that of the JSON.
  const shown = (value) => {
    if (value === null) return "";
    if (value < 1024) return `${value} B`;
    const unit = Math.min(4, Math.floor(Math.log(value / 0.9995) / Math.log(1024)));
    const scaled = value / 1024 ** unit;
    return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const cells = await page.locator(".rank-table tbody tr").evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
  ranks.ranks.forEach((row, i) => assert.deepEqual([cells[i][0], cells[i][3], cells[i][4]], [String(row.rank), shown(row.peak_reserved), shown(row.peak_allocated)]));
  // The divergence, the odd rank and the curves tell one story.
  const { first_divergence: apart, odd_ranks: [odd] } = ranks;
  assert.deepEqual([apart.rank, apart.of], [odd.rank, "kept"], "a leak diverges in what is kept");
  assert.equal(await page.textContent("#ranks-divergence"), `step ${apart.step}`);
  assert.equal(await page.locator("#ranks-divergence + .note").textContent(), apart.sentence);
  assert.deepEqual(said, []);
  await context.close();
});

test("the strip draws every rank, and a click shows one or the command for it", async () => {
  const { page, said, context } = await opened();
  const box = await page.locator(".strip").boundingBox();
  const middleOf = (rank) => box.y + ((rank + 0.5) / ranks.ranks.length) * (box.height - 18);
  // A rank whose allocations are not in the page.
  const absent = [...Array(RANKS - 1).keys()].find((rank) => ![ranks.worst_rank, ranks.median_rank, ranks.odd_ranks[0].rank].includes(rank));
  await page.mouse.click(box.x + box.width / 2, middleOf(absent));
  assert.match(await page.textContent("#strip .copy code"), new RegExp(`--rank ${absent} --open$`));
  const odd = ranks.odd_ranks[0].rank;
  await page.mouse.click(box.x + box.width / 2, middleOf(odd));
  await page.waitForFunction((rank) => document.querySelector("select[aria-label=Device]").selectedOptions[0].textContent === `Rank ${rank}`, odd);
  const peak = ranks.ranks.find((row) => row.rank === odd).peak_allocated;
  await page.waitForFunction((bytes) => window.gapless.peaks.allocated === bytes, peak);
  // The rank below is searched, zoomed and drawn as a single report is.
  await page.keyboard.press("p");
  await page.waitForFunction(() => window.gapless.resting && window.gapless.view.x1 - window.gapless.view.x0 < (window.gapless.whole.x1 - window.gapless.whole.x0) / 2);
  assert.equal(await page.textContent("#shown-rank"), `Rank ${odd} (odd: leak)`);
  // A note on a block, as a program makes one, is found and shown.
  await page.keyboard.press("/");
  await page.keyboard.type("blocks.7.annotated");
  await page.waitForFunction(() => window.gapless.query === "blocks.7.annotated" && window.gapless.found.count === 1);
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("n");
  await page.waitForFunction(() => [...document.querySelectorAll(".panel dl.facts dd")].some((dd) => dd.textContent === "encoder.blocks.7.annotated"));
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => window.gapless.found.count === 0);
  await page.keyboard.press("p");
  assert.equal(await page.evaluate(() => window.gapless.flame), await page.evaluate(() => window.gapless.at(window.gapless.cursor).active), "the flame graph holds what is active at the peak");
  assert.deepEqual(said, []);
  await context.close();
});

test("the strip is in the picture in light, dark and on paper", async () => {
  for (const options of [{}, { colorScheme: "dark" }]) {
    const { page, context } = await opened(options);
    // A canvas that changes its size is blank until the next frame has drawn it: each picture is waited for.
    const differs = () => page.waitForFunction(() => {
      const canvas = document.querySelector(".strip");
      const { data } = canvas.getContext("2d").getImageData(100, 0, canvas.width - 100, canvas.height - 20);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
      return seen.size > 12;
    });
    await differs();
    await page.emulateMedia({ media: "print" });
    await page.waitForFunction(() => document.documentElement.dataset.print === "1" && window.gapless.resting);
    await differs();
    await context.close();
  }
});

test("the page of two runs agrees with its JSON, and its flame graph zooms and is searched", async () => {
  const diff = JSON.parse(readFileSync(`${html}.diff.json`, "utf8"));
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const said = [];
  page.on("pageerror", (error) => said.push(error.message));
  page.on("request", (request) => request.url().startsWith("file://") || request.url().startsWith("data:") || said.push(request.url()));
  await page.goto(`file://${html}.diff.html`);
  const [{ holders, kinds }] = diff.devices;
  const tree = JSON.parse(await page.locator(".flame-box script").textContent());
  const sum = (side) => kinds.filter((kind) => kind.name !== "cached free").reduce((all, kind) => all + kind[side], 0);
  assert.deepEqual([tree.before[0], tree.after[0]], [sum("before"), sum("after")], "the root holds what is active in each run");
  tree.parent.forEach((parent, i) => assert.ok(i === 0 || (parent < i && tree.width[parent] >= tree.width[i]), "parents hold their children"));
  const grown = holders.find((holder) => holder.change > 0);
  assert.ok((await page.locator("td.grew").allTextContents()).length > 0 && grown, "what grew is listed");
  const boxes = page.locator(".flame button");
  const whole = await boxes.count();
  await boxes.nth(2).click();
  assert.ok((await boxes.count()) <= whole);
  assert.match(await page.textContent(".flame-said"), / → /);
  await page.locator(".flame-bar button").click();
  assert.equal(await boxes.count(), whole);
  await page.fill(".flame-bar input", "remember");
  assert.ok((await page.locator(".flame button.hit").count()) > 0, "the planted leak is found by its function");
  assert.equal(await page.locator("path.run").count(), 4, "two curves of each run");
  assert.deepEqual(await hiddenTables(page), []);
  assert.deepEqual(said, []);
  await context.close();
});

test("the page of two runs of many ranks agrees with its JSON, and shows the rank that became odd", async () => {
  const diff = JSON.parse(readFileSync(`${html}.ranks-diff.json`, "utf8"));
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme });
    const page = await context.newPage();
    const said = [];
    page.on("pageerror", (error) => said.push(error.message));
    page.on("request", (request) => request.url().startsWith("file://") || request.url().startsWith("data:") || said.push(request.url()));
    await page.goto(`file://${html}.ranks-diff.html`);
    assert.equal(await page.locator(".by-rank g").count(), diff.ranks.length, "a column for each rank");
    const [odd] = diff.odd_ranks.after;
    assert.equal(odd.why, "leak");
    const row = await page.locator("table.odd tbody tr").first().textContent();
    assert.ok(row.includes(`rank ${odd.rank}`) && row.includes("after only") && row.includes(odd.sentence), row);
    assert.equal(await page.locator("#rank").textContent(), `Rank ${odd.rank}it became odd`);
    const top = await page.locator("table.odd").boundingBox();
    assert.ok(top.y + top.height < 900, "who is odd stands on the first screen");
    await page.fill(".flame-bar input", "remember");
    assert.ok((await page.locator(".flame button.hit").count()) > 0, "the leak is found by its function");
    await page.locator(".more summary").click();
    assert.ok((await page.locator(".more tbody tr").count()) > 0);
    assert.deepEqual(await hiddenTables(page), []);
    assert.deepEqual(said, []);
    await context.close();
  }
});
