// Parts of a run: an interval that a drag selects, the flame graph both ways round, events around an instant, sizes.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { launch, open } from "./browser.mjs";
import { pageOf } from "./pages.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

const LEFT = 70;
const still = { reducedMotion: "reduce" };
const rest = (page) => page.waitForFunction(() => window.gapless.resting);
const reportOf = (path) => JSON.parse(readFileSync(path, "utf8").match(/id="report">(.*?)<\/script>/s)[1]);
const state = (page, name) => page.evaluate((key) => window.gapless[key], name);
/** Chooses, and waits until the choice is in the picture. */
const choose = async (page, label, value) => {
  await page.locator(`.choice[aria-label="${label}"] button[data-value="${value}"]`).click();
  await rest(page);
};

/** What was alive in [from, to), and what was allocated there, counted one by one. */
const counted = (page, [from, to]) =>
  page.evaluate(
    ([a, b]) => {
      const sums = { lived: 0, livedBytes: 0, born: 0, bornBytes: 0 };
      for (let i = 0; i < window.gapless.allocations; i++) {
        const own = window.gapless.allocation(i);
        if (own.start >= b || own.end <= a) continue;
        sums.lived++;
        sums.livedBytes += own.block;
        if (own.start < a) continue;
        sums.born++;
        sums.bornBytes += own.block;
      }
      return sums;
    },
    [from, to],
  );

async function drag(page, from, to, y = 0.5) {
  const box = await page.locator(".plot").boundingBox();
  const x = (share) => box.x + 1 + LEFT + (box.width - 2 - LEFT) * share;
  await page.mouse.move(x(from), box.y + box.height * y);
  await page.mouse.down();
  await page.mouse.move(x((from + to) / 2), box.y + box.height * y, { steps: 2 });
  await page.mouse.move(x(to), box.y + box.height * y, { steps: 2 });
  await page.mouse.up();
  await rest(page);
}

test("a drag selects an interval, and flame graph, holders and sizes are of it", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", still);
  await page.evaluate(() => document.getElementById("timeline").scrollIntoView());
  const whole = await state(page, "whole");
  // To the right and to the left, in the middle and past an edge.
  for (const [from, to] of [[0.3, 0.45], [0.45, 0.3], [0.9, 1.2], [0, 1]]) {
    await drag(page, from, to);
    const span = await state(page, "interval");
    const expected = [Math.min(from, to), Math.min(1, Math.max(from, to))].map((share) => whole.x0 + share * (whole.x1 - whole.x0));
    expected.forEach((x, k) => assert.ok(Math.abs(span[k] - x) < (whole.x1 - whole.x0) * 0.004 + 2, `${span} for ${expected}`));
    assert.deepEqual(await state(page, "view"), whole, "the view stays");
    const sums = await counted(page, span);
    assert.equal(await state(page, "flame"), sums.livedBytes, "the flame graph is of what was alive in it");
    const told = await page.locator("#interval").textContent();
    assert.ok(told.includes(`in ${sums.lived.toLocaleString("en-US")} block`), told);
    assert.equal(await page.locator("#holders h2").textContent(), "Largest holders of the interval");
    await choose(page, "Bytes", "born");
    assert.equal(await state(page, "flame"), sums.bornBytes, "and of what was allocated in it");
    await choose(page, "Bytes", "lived");
    const blocks = await page.locator(".sizes .size .size-bar:nth-child(2) b").allTextContents();
    assert.equal(blocks.reduce((sum, text) => sum + Number(text.replaceAll(",", "")), 0), sums.lived, "the sizes add up");
  }
  await drag(page, 0.3, 0.45);
  await page.locator('#holders tbody tr[data-rank="1"]').click();
  const [name, count] = await page.locator('#holders tbody tr[data-rank="1"]').evaluate((row) => [row.querySelector(".inner").textContent, Number(row.cells[2].textContent.replaceAll(",", ""))]);
  const lit = await page.evaluate(([a, b]) => {
    let found = 0;
    for (let i = 0; i < window.gapless.allocations; i++) {
      const own = window.gapless.allocation(i);
      if (own.color >>> 24 === 254 && own.start < b && own.end > a) found++;
    }
    return found;
  }, await state(page, "interval"));
  assert.equal(lit, count, `${name} is lit`);
  await page.locator("#interval button", { hasText: "Zoom" }).click();
  await rest(page);
  const view = await state(page, "view");
  assert.ok(view.x1 - view.x0 < (whole.x1 - whole.x0) * 0.2);
  const link = await page.waitForFunction(() => window.gapless.linked && /[#&]i=\d+,\d+/.test(location.hash) && location.hash.slice(1));
  const again = await open(browser, pageOf("report"), await link.jsonValue(), still);
  assert.deepEqual(await state(again.page, "interval"), await state(page, "interval"), "the link keeps it");
  await again.context.close();
  await page.locator("#interval button", { hasText: "Clear" }).click();
  assert.equal(await state(page, "interval"), null);
  assert.equal(await page.locator("#holders h2").textContent(), "Largest holders at the peak");
  assert.equal(await page.locator('.choice[aria-label="Bytes"] button[data-value="lived"]').count(), 0);
  assert.deepEqual(said, []);
  await context.close();
});

test("brackets select an interval by keyboard, escape clears it, a swipe over it scrolls the page", async () => {
  const { page, context } = await open(browser, pageOf("report"), "t=1000", still);
  await page.locator(".plot").focus();
  await page.keyboard.press("[");
  assert.equal((await state(page, "interval"))[0], 1000);
  for (let k = 0; k < 5; k++) await page.keyboard.press(".");
  await page.keyboard.press("]");
  assert.deepEqual(await state(page, "interval"), [1000, 1006]);
  await page.keyboard.press("Escape");
  assert.equal(await state(page, "interval"), null);
  await page.keyboard.press("+");
  await rest(page);
  const view = await state(page, "view");
  await page.keyboard.press("i");
  const [from, to] = await state(page, "interval");
  assert.ok(Math.abs(from - view.x0) <= 1 && Math.abs(to - view.x1) <= 1, `${from}, ${to}`);
  assert.equal(await page.locator(".plot").evaluate((plot) => getComputedStyle(plot).touchAction), "pan-y");
  await context.close();
});

test("the flame graph turned round has the same bytes, the callee first", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", still);
  const rows = () => page.locator(".flame > button").evaluateAll((all) => all.map((one) => [Number(one.ariaLevel), one.getAttribute("aria-label")]));
  const forward = await rows();
  const total = await state(page, "flame");
  await choose(page, "Order", "leaf");
  assert.equal(await state(page, "flame"), total);
  const { holders } = reportOf(pageOf("report")).devices[0];
  const second = (await rows()).filter(([level]) => level === 2).map(([, label]) => label);
  const first = holders[0].stack.find((frame) => frame.file.endsWith(".py"));
  assert.ok(second.some((label) => label.includes(`${first.file.split("/").pop()}:${first.line} ${first.name}`)), `${second.slice(0, 4)} has ${first.name}`);
  // A branch lights up what it has: from the leaf as from the root.
  await page.locator('.flame > button[aria-level="2"]').first().evaluate((element) => element.click());
  const own = await page.locator("#flame-total").textContent();
  const found = await state(page, "found");
  assert.ok(own.endsWith(`${found.peakCount.toLocaleString("en-US")} blocks`), `${own} and ${found.peakCount}`);
  await choose(page, "Order", "root");
  await page.locator(".toolbar button", { hasText: "Clear" }).first().click();
  await rest(page);
  assert.deepEqual(await rows(), forward);
  assert.deepEqual(said, []);
  await context.close();
});

test("the events around a failed request say what, how much and who, and mark the request", async () => {
  const html = pageOf("oom");
  const [{ churn: { ooms: [oom] }, peak_at: peaks }] = reportOf(html).devices;
  const { page, said, context } = await open(browser, html, "", still);
  const failed = page.locator(".failed-request");
  assert.equal(await failed.count(), 1);
  const text = await failed.textContent();
  assert.match(text, /✗failed: out of memory/);
  assert.ok(text.includes("1.53 GiB") && text.includes("loss_utils.py:59 ForCausalLMLoss"), text);
  assert.equal(await failed.getAttribute("data-tick"), String(oom.tick));
  assert.equal(await page.evaluate(() => document.getElementById("timeline").nextElementSibling.id), "events", "a page of a failure has them right below the timeline");
  // Each event before it is one row, in order, and the bytes in use follow from them.
  const rows = await page.locator(".events tbody tr").evaluateAll((all) => all.map((row) => ({ tick: Number(row.dataset.tick), cells: [...row.cells].map((cell) => cell.textContent) })));
  assert.deepEqual(rows.map((row) => row.tick), Array.from({ length: rows.length }, (_, k) => oom.tick - 12 + k));
  for (const { tick, cells } of rows) {
    const [before, now] = await page.evaluate((at) => [window.gapless.at(at - 1), window.gapless.at(at)], tick);
    const sign = Math.sign(now.active - before.active);
    if (/^.allocated/.test(cells[2])) assert.equal(sign, 1, cells.join());
    else if (/^.freed/.test(cells[2])) assert.equal(sign, -1, cells.join());
    else assert.equal(sign, 0, cells.join());
  }
  await page.locator("#events button", { hasText: "20 earlier" }).click();
  assert.equal(await page.locator(".events tbody tr").count(), rows.length + 20);
  await choose(page, "Around", "peak");
  assert.equal(await page.locator(".events .centre").getAttribute("data-tick"), String(peaks.allocated.tick));
  await choose(page, "Around", "instant");
  await page.locator(".plot").focus();
  await page.keyboard.press(".");
  await page.waitForFunction(() => document.querySelector(".events .centre")?.dataset.tick === String(window.gapless.cursor));
  const row = page.locator(".events tbody tr", { hasText: "+allocated" }).first();
  await row.focus();
  const tick = Number(await row.getAttribute("data-tick"));
  await page.keyboard.press("Enter");
  assert.equal(await state(page, "cursor"), tick);
  const selected = await page.evaluate(() => window.gapless.allocation(window.gapless.selected));
  assert.equal(selected.start, tick, "a row selects its block");
  assert.deepEqual(said, []);
  await context.close();
});

test("the sizes are counted in classes, and a click lights one up", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", still);
  const expected = (of) =>
    page.evaluate(
      ([all, tick]) => {
        const classes = {};
        for (let i = 0; i < window.gapless.allocations; i++) {
          const own = window.gapless.allocation(i);
          if (!all && !(own.start <= tick && tick < own.end)) continue;
          const k = Math.floor(Math.log2(own.block));
          classes[k] = (classes[k] ?? 0) + 1;
        }
        return classes;
      },
      [of === "all", reportOf(pageOf("report")).devices[0].peak_at.allocated.tick],
    );
  for (const of of ["peak", "all"]) {
    await choose(page, "Sizes", of);
    const shown = await page.locator(".size").evaluateAll((all) => Object.fromEntries(all.map((one) => [one.dataset.class, Number(one.querySelector("b").textContent.replaceAll(",", ""))]).filter(([, n]) => n > 0)));
    assert.deepEqual(shown, await expected(of), of);
  }
  const classes = await page.locator(".size").evaluateAll((all) => all.map((one) => Number(one.dataset.class)));
  assert.deepEqual(classes, classes.map((_, k) => classes[0] - k), "no class is left out between the largest and the smallest");
  const of = await expected("all");
  for (const k of [classes[0], classes[Math.floor(classes.length / 2)]]) {
    const button = page.locator(`.size[data-class="${k}"]`);
    await button.focus();
    await page.keyboard.press("Enter");
    assert.equal((await state(page, "found")).count, of[k] ?? 0);
    assert.equal(await button.getAttribute("aria-pressed"), "true");
  }
  await page.keyboard.press("Enter");
  assert.equal(await page.locator('.size[aria-pressed="true"]').count(), 0, "a second click lets it go");
  assert.deepEqual(said, []);
  await context.close();
});
