// The first screen, the stacked view, search, the flame graph and print, held against the report's JSON.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { launch, open, pixel, subject } from "./browser.mjs";

const LEFT = 70;
const BOTTOM = 24;

function bytes(value) {
  if (value < 1024) return `${value} B`;
  let unit = 0;
  let scaled = value / 1024;
  while (scaled >= 999.5) {
    scaled /= 1024;
    unit++;
  }
  return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${["KiB", "MiB", "GiB", "TiB"][unit]}`;
}

let browser;
let html;
let report;
before(async () => {
  ({ html, report } = subject());
  browser = await launch();
});
after(() => browser?.close());

const state = (page, name) => page.evaluate((key) => window.gapless[key], name);
const allocation = (page, i) => page.evaluate((k) => window.gapless.allocation(k), i);
const rest = (page) => page.waitForFunction(() => window.gapless.resting);

/** The allocations that `wanted`, a function of one allocation and `given`, is true for. */
const counted = (page, wanted, given) =>
  page.evaluate(
    ([source, argument]) => {
      const is = new Function("own", "given", `return (${source})(own, given)`);
      let count = 0;
      for (let i = 0; i < window.gapless.allocations; i++) if (is(window.gapless.allocation(i), argument)) count++;
      return count;
    },
    [wanted.toString(), given],
  );

describe("the first screen", () => {
  for (const colorScheme of ["light", "dark"]) {
    test(`says how much, what and what to do within 1440 x 900, ${colorScheme}`, async () => {
      const { page, context, said } = await open(browser, html, "", { viewport: { width: 1440, height: 900 }, colorScheme });
      const device = report.devices[0];
      for (const selector of [".figures", ".composition .bar", ".composition ul", ".top-holders", "#findings"]) {
        const box = await page.locator(selector).first().boundingBox();
        assert.ok(box && box.y >= 0 && box.y + box.height <= 900 && box.x + box.width <= 1440, `${selector} is on the first screen: ${JSON.stringify(box)}`);
      }
      const rows = await page.locator(".top-holders button").allTextContents();
      assert.equal(rows.length, Math.min(5, device.holders.length));
      rows.forEach((text, k) => {
        assert.ok(text.includes(device.holders[k].label), `${text} names ${device.holders[k].label}`);
        assert.ok(text.includes(bytes(device.holders[k].bytes)), text);
      });
      assert.equal(new Set(device.holders.map((h) => h.label)).size, device.holders.length, "holders that differ have different names");
      for (const finding of await page.locator(".finding:not(.more) summary").all()) assert.ok((await finding.boundingBox()).height <= 40, "a finding is one line");
      const wanted = report.findings.find((f) => f.suggestion);
      if (wanted) assert.equal(await page.locator(".copy code").first().textContent(), wanted.suggestion);
      await page.locator(".finding summary").first().click();
      assert.ok(await page.locator(".finding .help").first().isVisible(), "a click opens the details");
      assert.deepEqual(said, []);
      await context.close();
    });
  }

  test("a kind has one colour everywhere", async () => {
    const { page, context } = await open(browser, html, "", { viewport: { width: 1440, height: 900 } });
    await rest(page);
    const colors = await page.evaluate(() => {
      const paint = (element) => getComputedStyle(element).backgroundColor;
      const found = {};
      const see = (kind, color) => (found[kind.replaceAll("_", " ")] ??= new Set()).add(color);
      for (const part of document.querySelectorAll(".composition .bar i:not(.free)")) see(part.dataset.kind, paint(part));
      for (const key of document.querySelectorAll("button.key")) see(key.dataset.kind, paint(key.querySelector(".swatch")));
      for (const row of document.querySelectorAll(".holders tbody tr")) see(row.querySelector(".kind").textContent, paint(row.querySelector(".swatch")));
      return Object.entries(found).map(([kind, all]) => [kind, [...all]]);
    });
    assert.ok(colors.length > 1);
    for (const [kind, all] of colors) assert.equal(all.length, 1, `${kind}: ${all}`);
    assert.equal(new Set(colors.map(([, all]) => all[0])).size, colors.length, "and no other kind has it");
    await context.close();
  });
});

describe("the stacked view", () => {
  let page;
  let said;
  let context;
  before(async () => {
    ({ page, said, context } = await open(browser, html, ""));
    await page.evaluate(() => document.getElementById("timeline").scrollIntoView());
    await rest(page);
  });
  after(() => context?.close());

  test("is the first one, and its top is what is active at every instant", async () => {
    assert.equal(await state(page, "mode"), "stacked");
    const device = report.devices[0];
    const wrong = await page.evaluate((last) => {
      const wrong = [];
      for (let k = 0; k <= 400; k++) {
        const tick = Math.round((last * k) / 400);
        let top = 0;
        for (const [i, low, high] of window.gapless.stack(tick)) {
          const own = window.gapless.allocation(i);
          if (low !== top || !(own.start <= tick && tick < own.end)) wrong.push([tick, i]);
          top = high;
        }
        if (top !== window.gapless.at(tick).active) wrong.push([tick, top]);
      }
      return wrong;
    }, device.events);
    assert.deepEqual(wrong, []);
    assert.ok((await state(page, "whole")).y1 < Math.max(device.peak_reserved ?? 0, device.peak_active) * 1.07);
  });

  test("the picture ends where the active bytes end", async () => {
    const device = report.devices[0];
    for (const tick of [device.peak_at.allocated.tick, Math.round(device.events / 3), Math.round(device.events * 0.8)]) {
      const at = await page.evaluate((k) => window.gapless.at(k), tick);
      const top = at.active * 1.5;
      await page.goto("about:blank");
      await page.goto(`file://${html}#x=event&v=${tick - 3},${tick + 4},0,${top}`);
      await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined);
      await page.evaluate(() => window.scrollTo(0, document.getElementById("timeline").offsetTop - 60));
      await page.mouse.move(5, 5);
      await rest(page);
      const [view, box, head] = await Promise.all([state(page, "view"), page.locator(".plot").boundingBox(), page.locator(".plot").evaluate((e) => parseFloat(e.style.getPropertyValue("--top")))]);
      const x = box.x + 1 + LEFT + ((tick + 0.75 - view.x0) / (view.x1 - view.x0)) * (box.width - 2 - LEFT);
      const high = box.height - 2 - head - BOTTOM;
      const py = (y) => box.y + 1 + head + high - ((y - view.y0) / (view.y1 - view.y0)) * high;
      const back = [0xfd, 0xfd, 0xfc];
      assert.notDeepEqual(await pixel(page, x, py(at.active) + 6), back, `below the top at ${tick}`);
      const above = (at.active + Math.min(at.reserved || Infinity, view.y1)) / 2;
      if (py(at.active) - py(above) > 10) assert.deepEqual(await pixel(page, x, py(above)), back, `above the top at ${tick}`);
    }
  });

  test("pointing, selecting and searching work as in the packed view", async () => {
    const device = report.devices[0];
    const tick = device.peak_at.allocated.tick;
    await page.goto("about:blank");
    await page.goto(`file://${html}#x=event&v=${tick - 3},${tick + 4},0,${device.peak_active * 1.1}`);
    await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined);
    await page.evaluate(() => window.scrollTo(0, document.getElementById("timeline").offsetTop - 60));
    await rest(page);
    const [i, low, high] = await page.evaluate((k) => window.gapless.stack(k).reduce((best, own) => (own[2] - own[1] > best[2] - best[1] ? own : best)), tick);
    const [view, box, head] = await Promise.all([state(page, "view"), page.locator(".plot").boundingBox(), page.locator(".plot").evaluate((e) => parseFloat(e.style.getPropertyValue("--top")))]);
    const x = box.x + 1 + LEFT + ((tick + 0.5 - view.x0) / (view.x1 - view.x0)) * (box.width - 2 - LEFT);
    const tall = box.height - 2 - head - BOTTOM;
    const y = box.y + 1 + head + tall - (((low + high) / 2 - view.y0) / (view.y1 - view.y0)) * tall;
    await page.mouse.move(x - 2, y);
    await page.mouse.move(x, y);
    await page.locator(".tip").first().waitFor({ state: "visible" });
    assert.ok((await page.locator(".plot .tip").textContent()).includes(bytes(high - low)));
    await page.mouse.click(x, y);
    assert.equal(await state(page, "selected"), i);
    assert.equal(await state(page, "cursor"), tick);
    await page.keyboard.press("z");
    await rest(page);
    await page.keyboard.press("Escape");
    await page.keyboard.press("v");
    assert.equal(await state(page, "mode"), "packed");
    await page.waitForFunction(() => window.gapless.linked);
    assert.match(await page.evaluate(() => location.hash), /m=packed/);
    await page.keyboard.press("v");
    assert.equal(await state(page, "mode"), "stacked");
    await page.keyboard.press("0");
    await rest(page);
  });

  test("one key and one button zoom to the peak, and a narrow peak has an inset", async () => {
    const tick = report.devices[0].peak_at.allocated.tick;
    await page.locator(".plot").focus();
    await page.keyboard.press("0");
    await rest(page);
    assert.equal(await page.locator(".inset").isVisible(), (await state(page, "peakWidth")) < 24);
    const whole = await state(page, "view");
    for (const go of [() => page.keyboard.press("p"), () => page.locator('.zoom button[aria-label^="Zoom to the peak"]').click()]) {
      await go();
      await rest(page);
      const view = await state(page, "view");
      assert.ok(view.x0 <= tick && tick <= view.x1, "the peak is in sight");
      assert.ok((await state(page, "peakWidth")) >= 24 || view.x1 - view.x0 < 40, "and wide enough to be seen");
      assert.ok(view.x1 - view.x0 < (whole.x1 - whole.x0) * 0.8, "closer than before");
      assert.equal(await state(page, "cursor"), tick);
      await page.keyboard.press("0");
      await rest(page);
    }
  });

  const search = async (text) => {
    await page.locator('.search input[aria-label^="Search by"]').fill(text);
    await page.waitForFunction((query) => window.gapless.query === query, text);
    return (await state(page, "found")).count;
  };

  test("search finds whatever the page shows", async () => {
    const device = report.devices[0];
    const holder = device.holders.find((h) => h.stack.length) ?? device.holders[0];
    for (const frame of holder.stack.slice(0, 8)) {
      const line = `${frame.file.split(/[\\/]/).pop()}:${frame.line}`;
      assert.ok((await search(line)) >= holder.count, line);
      assert.ok((await search(frame.name)) >= holder.count, frame.name);
    }
    for (const own of device.holders.slice(0, 4)) assert.ok((await search(own.label.replace(/, \d+ B( each)?$/, ""))) >= Math.min(own.count, 1), own.label);
    const kinds = Object.entries(device.kinds.at_peak).filter(([name, held]) => held > 0 && name !== "cached_free");
    for (const [kind] of kinds) assert.ok((await search(kind.replaceAll("_", " "))) > 0, kind);
    const largest = await page.evaluate(() => {
      let best = 0;
      for (let i = 1; i < window.gapless.allocations; i++) if (window.gapless.allocation(i).block > window.gapless.allocation(best).block) best = i;
      return window.gapless.allocation(best);
    });
    const size = bytes(largest.block);
    const same = await counted(page, (own, given) => given.includes(own.block) || given.includes(own.requested), await page.evaluate((unused) => {
      const found = new Set();
      for (let i = 0; i < window.gapless.allocations; i++) found.add(window.gapless.allocation(i).block).add(window.gapless.allocation(i).requested);
      return [...found];
    }, 0).then((all) => all.filter((value) => bytes(value) === size)));
    assert.equal(await search(size), same, size);
    const address = (await allocation(page, 0)).address;
    assert.equal(await search(address), await counted(page, (own, given) => own.address === given, address), address);
    for (const stream of device.streams.slice(0, 2)) {
      const name = stream.stream === 0 ? "default" : `0x${stream.stream.toString(16)}`;
      assert.ok((await search(`stream ${name}`)) > 0, name);
    }
    if (device.steps.count) assert.equal(await search("step 0"), await counted(page, (own, given) => own.start >= given.start && own.start < given.end, device.steps.spans[0]));
    assert.equal(await search("no such thing anywhere"), 0);
    await search("");
  });

  test("the flame graph adds up to the report, zooms and filters the timeline", async () => {
    const device = report.devices[0];
    assert.equal(await state(page, "flame"), device.at_peak_allocated.figures.active);
    assert.equal(await page.locator("#flame-total").textContent().then((text) => text.split(" · ")[0]), bytes(device.at_peak_allocated.figures.active));
    for (const by of await page.locator('.choice[aria-label="By"] button').all()) {
      await by.click();
      await rest(page);
      assert.equal(await state(page, "flame"), device.at_peak_allocated.figures.active, await by.textContent());
    }
    await page.locator('.choice[aria-label="By"] button').first().click();
    await page.locator('.choice[aria-label="Bytes"] button[data-value="all"]').click();
    await rest(page);
    const all = await page.evaluate(() => {
      let sum = 0;
      for (let i = 0; i < window.gapless.allocations; i++) sum += window.gapless.allocation(i).block;
      return sum;
    });
    assert.equal(await state(page, "flame"), all);
    await page.locator('.choice[aria-label="Bytes"] button[data-value="peak"]').click();
    await rest(page);
    const branch = page.locator('.flame button[aria-level="3"]').first();
    const named = (await branch.getAttribute("aria-label")).replace(/: [^:]*$/, "");
    await branch.click();
    await rest(page);
    const found = await state(page, "found");
    assert.ok(found.count > 0 && found.count < (await state(page, "allocations")), "the branch is lit in the timeline");
    assert.equal(await page.locator(".crumbs b").textContent(), named);
    assert.ok((await page.locator(".found").textContent()).startsWith(`${named}: `));
    // By keyboard: down to a child, enter zooms, escape goes back out.
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-level")), "2");
    await page.keyboard.press("Enter");
    await rest(page);
    assert.notEqual(await page.locator(".crumbs b").textContent(), named);
    await page.keyboard.press("Escape");
    await rest(page);
    assert.equal(await page.locator(".crumbs b").textContent(), named);
    await page.locator(".crumbs button", { hasText: "All" }).click();
    await rest(page);
    assert.equal((await state(page, "found")).count, 0);
  });

  test("no exception, no console error and no request", () => assert.deepEqual(said, []));
});

test("on paper nothing is blank and nothing is cut off", async () => {
  const { page, context, said } = await open(browser, html, "", { viewport: { width: 1040, height: 720 }, colorScheme: "dark" });
  await page.evaluate(() => {
    window.cleared = [];
    const clear = CanvasRenderingContext2D.prototype.clearRect;
    CanvasRenderingContext2D.prototype.clearRect = function (...where) {
      if (document.documentElement.dataset.print !== undefined) window.cleared.push(this.canvas.className);
      return clear.apply(this, where);
    };
  });
  await page.emulateMedia({ media: "print" });
  await page.waitForFunction(() => document.documentElement.dataset.print === "1");
  await rest(page);
  assert.deepEqual(await page.evaluate(() => window.cleared), [], "a cleared rectangle is white on paper, and covers the picture below");
  const drawn = await page.evaluate(() =>
    [...document.querySelectorAll("canvas")].filter((canvas) => canvas.clientWidth > 0).map((canvas) => {
      const shot = document.createElement("canvas");
      [shot.width, shot.height] = [canvas.width, canvas.height];
      const context = shot.getContext("2d");
      context.drawImage(canvas, 0, 0);
      const pixels = new Uint32Array(context.getImageData(0, 0, shot.width, shot.height).data.buffer);
      return [canvas.className, new Set(pixels).size, Math.abs(canvas.width - canvas.clientWidth * devicePixelRatio)];
    }),
  );
  for (const name of ["rects stacked", "over", "minimap", "curves", "segments"]) assert.ok(drawn.some(([own]) => own === name), name);
  for (const [name, colors, off] of drawn) {
    assert.ok(colors > 2, `${name} has something on it`);
    assert.ok(off <= 1, `${name} fits its place`);
  }
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 1040);
  assert.equal(await page.locator("details:not([open])").count(), 0);
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light", "paper is light");
  await page.emulateMedia({ media: "screen" });
  await page.waitForFunction(() => document.documentElement.dataset.print === undefined);
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  const pdf = await page.pdf({ preferCSSPageSize: true, printBackground: true });
  assert.equal(pdf.subarray(0, 5).toString(), "%PDF-");
  assert.deepEqual(said, []);
  await context.close();
});

test("no section is blank before it is scrolled to", async () => {
  const { page, context } = await open(browser, html, "");
  await rest(page);
  const heights = await page.evaluate(() => [...document.querySelectorAll("main > section")].map((section) => [section.id, section.clientHeight, [...section.querySelectorAll("canvas")].every((canvas) => canvas.hidden || canvas.width > 1)]));
  for (const [id, height, drawn] of heights) assert.ok(height > 40 && drawn, `${id}: ${height}`);
  const blank = await page.evaluate(() => {
    const canvas = document.querySelector(".segments");
    return !new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer).some((v) => v !== 0);
  });
  assert.equal(blank, false);
  await context.close();
});
