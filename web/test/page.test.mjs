// Drives the page as a reader does and holds what it shows against the report's JSON, with both renderers.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { launch, open, pixel, subject } from "./browser.mjs";

const LEFT = 70;
const BOTTOM = 24;

/** The terminal's rule for bytes, written again: the page must show the same text. */
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

/** The terminal's rule for shares. */
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

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
/** Until nothing moves and all is painted: the page says so, no clock does. */
const rest = (page) => page.waitForFunction(() => window.gapless.resting);
/** Until the view is another than `before`: a wheel's event comes when the browser likes. */
const moved = (page, before) => page.waitForFunction((old) => JSON.stringify(window.gapless.view) !== old, JSON.stringify(before));

/** Where the middle of allocation `i` is on the screen, or null where it is out of sight or too thin to point at. */
async function middle(page, i) {
  const [own, view, box, top] = await Promise.all([
    allocation(page, i),
    state(page, "view"),
    page.locator(".plot").boundingBox(),
    page.locator(".plot").evaluate((element) => parseFloat(element.style.getPropertyValue("--top"))),
  ]);
  const width = box.width - 2 - LEFT;
  const height = box.height - 2 - top - BOTTOM;
  const px = (x) => LEFT + ((x - view.x0) / (view.x1 - view.x0)) * width;
  const py = (y) => top + height - ((y - view.y0) / (view.y1 - view.y0)) * height;
  const left = Math.max(LEFT, px(own.x0));
  const right = Math.min(LEFT + width, px(own.x1));
  const high = Math.max(top, py(own.y + own.block));
  const low = Math.min(top + height, py(own.y));
  if (right - left < 4 || low - high < 4) return null;
  return { x: box.x + 1 + (left + right) / 2, y: box.y + 1 + (low + high) / 2 };
}

/** The allocation alive at `tick` with the largest block. */
const largestAt = (page, tick) =>
  page.evaluate((at) => {
    let best = -1;
    let size = 0;
    for (let i = 0; i < window.gapless.allocations; i++) {
      const own = window.gapless.allocation(i);
      if (own.start <= at && at < own.end && own.block > size) [best, size] = [i, own.block];
    }
    return best;
  }, tick);

for (const renderer of ["webgl2", "canvas"]) {
  describe(`with ${renderer}`, () => {
    let page;
    let said;
    let context;
    before(async () => {
      // Renderers differ in the packed view only; web/test/stacked.test.mjs has the other one.
      ({ page, said, context } = await open(browser, html, `renderer=${renderer}&m=packed`));
      await rest(page);
      await page.locator("#timeline").scrollIntoViewIfNeeded();
      await page.evaluate(() => document.getElementById("timeline").scrollIntoView());
    });
    after(() => context?.close());

    test("the figures are those of the report", async () => {
      const device = report.devices[0];
      assert.equal(await state(page, "renderer"), renderer);
      assert.equal(await state(page, "allocations"), device.allocations);
      assert.deepEqual(await state(page, "peaks"), { active: device.peak_active, allocated: device.peak_allocated, reserved: device.peak_reserved });
      assert.equal(await page.locator("#figure-allocated").textContent(), bytes(device.peak_allocated));
      assert.equal(await page.locator("#figure-reserved").textContent(), bytes(device.peak_reserved));
      const share = device.fragmentation;
      assert.equal(await page.locator("#figure-fragmentation").textContent(), percent(share));
      const at = device.peak_at.allocated.tick;
      assert.equal((await page.evaluate((tick) => window.gapless.at(tick), at)).allocated, device.peak_allocated);
      assert.equal(await page.locator(".finding").count(), report.findings.length);
      assert.equal(await page.locator(".finding .headline").first().textContent(), [...report.findings].sort((a, b) => Number(b.severity === "error") - Number(a.severity === "error"))[0].headline);
    });

    test("the wheel zooms at the pointer, zero and a double click reset", async () => {
      const box = await page.locator(".plot").boundingBox();
      const whole = await state(page, "whole");
      const at = box.x + 1 + LEFT + (box.width - 2 - LEFT) * 0.25;
      await page.mouse.move(at, box.y + box.height / 2);
      await page.mouse.wheel(0, -400);
      await moved(page, whole);
      await rest(page);
      const view = await state(page, "view");
      assert.ok(view.x1 - view.x0 < (whole.x1 - whole.x0) * 0.9, "zoomed in");
      const fixed = whole.x0 + (whole.x1 - whole.x0) * 0.25;
      const kept = view.x0 + (view.x1 - view.x0) * 0.25;
      assert.ok(Math.abs(kept - fixed) < (whole.x1 - whole.x0) * 0.002, "what is under the pointer stays there");
      await page.locator(".plot").focus();
      await page.keyboard.press("0");
      await rest(page);
      assert.deepEqual(await state(page, "view"), whole);
      await page.keyboard.press("+");
      await page.mouse.dblclick(at, box.y + box.height / 2);
      await rest(page);
      assert.deepEqual(await state(page, "view"), whole);
    });

    test("a drag with Alt pans, a drag with shift zooms into the box", async () => {
      const box = await page.locator(".plot").boundingBox();
      const [x, y] = [box.x + 400, box.y + 200];
      await page.mouse.move(x, y);
      await page.keyboard.down("Shift");
      await page.mouse.down();
      await page.mouse.move(x + 300, y + 120, { steps: 4 });
      await page.mouse.up();
      await page.keyboard.up("Shift");
      await rest(page);
      const boxed = await state(page, "view");
      const whole = await state(page, "whole");
      assert.ok(boxed.x1 - boxed.x0 < (whole.x1 - whole.x0) * 0.5 && boxed.y1 - boxed.y0 < (whole.y1 - whole.y0) * 0.5);
      await page.keyboard.down("Alt");
      await page.mouse.down();
      await page.mouse.move(x + 200, y + 120, { steps: 4 });
      await page.mouse.up();
      await page.keyboard.up("Alt");
      await rest(page);
      const panned = await state(page, "view");
      assert.ok(panned.x0 > boxed.x0, "dragging to the left moves on in time");
      assert.ok(Math.abs(panned.x1 - panned.x0 - (boxed.x1 - boxed.x0)) < 1e-3);
      await page.keyboard.press("0");
      await rest(page);
    });

    test("hovering tells size, lifetime and stack, a click keeps it, escape lets it go", async () => {
      const i = await largestAt(page, report.devices[0].peak_at.allocated.tick);
      await page.evaluate(() => window.scrollTo(0, document.getElementById("timeline").offsetTop - 60));
      const own = await allocation(page, i);
      // Into sight, large enough to point at.
      const [wide, tall] = [own.x1 - own.x0, own.block * 2];
      const link = `renderer=${renderer}&m=packed&x=event&v=${own.x0 - wide},${own.x1 + wide},${own.y - tall},${own.y + own.block + tall}`;
      await page.evaluate((hash) => history.replaceState(null, "", "#" + hash), link);
      await page.reload();
      await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined);
      await page.evaluate(() => window.scrollTo(0, document.getElementById("timeline").offsetTop - 60));
      await rest(page);
      const at = await middle(page, i);
      assert.ok(at, "large enough to point at");
      await page.mouse.move(at.x - 3, at.y);
      await page.mouse.move(at.x, at.y);
      const tip = page.locator(".plot .tip");
      await tip.waitFor({ state: "visible" });
      const text = await tip.textContent();
      assert.ok(text.includes(bytes(own.block)), `${text} names ${bytes(own.block)}`);
      assert.ok(text.includes(`${own.requested.toLocaleString("en-US")} B`), text);
      assert.ok(text.includes(`${(own.end - own.start).toLocaleString("en-US")} events`), text);
      assert.ok(text.includes(await page.evaluate((k) => window.gapless.title(k), i)), text);
      await page.mouse.click(at.x, at.y);
      assert.equal(await state(page, "selected"), i);
      assert.equal(await page.locator("#chosen-bytes").textContent(), bytes(own.block));
      assert.match(await page.locator("#live").textContent(), /^Selected /);
      if (own.stack > 0) assert.ok((await page.locator(".stack li").count()) > 0);
      // The colour on the screen is the colour of the allocation, where the pointer's marks do not cover it.
      await page.keyboard.press("Escape");
      assert.equal(await state(page, "selected"), -1);
      await page.mouse.move(5, 5);
      await rest(page);
      const color = own.color;
      assert.deepEqual(await pixel(page, at.x + 2, at.y + 1), [color & 255, (color >> 8) & 255, (color >> 16) & 255]);
      await page.keyboard.press("0");
      await rest(page);
    });

    test("a holder of the table is that holder in the timeline", async () => {
      const tick = report.devices[0].peak_at.allocated.tick;
      for (const holder of report.devices[0].holders.slice(0, 3)) {
        await page.locator(`.holders tr[data-rank="${holder.rank}"]`).click();
        const held = await page.evaluate(([at, kept]) => {
          let [count, sum] = [0, 0];
          for (let i = 0; i < window.gapless.allocations; i++) {
            const own = window.gapless.allocation(i);
            if (own.color >>> 24 === kept && own.start <= at && at < own.end) {
              count++;
              sum += own.block;
            }
          }
          return { count, sum };
        }, [tick, 254]);
        assert.deepEqual(held, { count: holder.count, sum: holder.bytes }, `holder ${holder.rank}`);
        assert.equal(await page.locator(`.holders tr[data-rank="${holder.rank}"]`).getAttribute("aria-selected"), "true");
        assert.equal(await state(page, "cursor"), tick);
      }
      await page.locator(".toolbar button", { hasText: "Clear" }).click();
      assert.equal((await state(page, "found")).count, 0);
    });

    test("search finds by function, says how many and how much, and dims the rest", async () => {
      const wanted = report.devices[0].holders.find((h) => h.stack?.length);
      const name = wanted ? wanted.stack[0].name : report.devices[0].holders[0].kind;
      await page.keyboard.press("/");
      assert.equal(await page.evaluate(() => document.activeElement.type), "search");
      await page.keyboard.type(name);
      // The whole word, not what was typed of it when the page looked first.
      await page.waitForFunction((text) => window.gapless.query === text && window.gapless.found.count > 0, name);
      const found = await state(page, "found");
      const told = await page.locator(".found").textContent();
      const held = found.peakCount ? `${bytes(found.peakBytes)} at the peak in ${found.peakCount.toLocaleString("en-US")} block${found.peakCount === 1 ? "" : "s"}` : "nothing at the peak";
      assert.ok(told.startsWith(held), `${told} begins with ${held}`);
      if (found.count > found.peakCount) assert.ok(told.endsWith(`${found.count.toLocaleString("en-US")} allocation${found.count === 1 ? "" : "s"}, ${bytes(found.bytes)} in turn`), told);
      assert.ok(found.count >= (wanted?.count ?? 1));
      const dimmed = await page.evaluate(() => {
        for (let i = 0; i < window.gapless.allocations; i++) if (window.gapless.allocation(i).color >>> 24 === 255) return i;
        return -1;
      });
      assert.ok(dimmed >= 0 || found.count === report.devices[0].allocations, "something is dimmed");
      await page.keyboard.press("Escape");
      await page.waitForFunction(() => window.gapless.found.count === 0);
      await page.keyboard.press("n");
      assert.ok((await state(page, "selected")) >= 0, "N goes from one to the next");
      await page.keyboard.press("Escape");
      await page.keyboard.press("0");
      await rest(page);
    });

    test("filters leave what they say", async () => {
      const least = 1024 ** 2;
      await page.locator('select[aria-label="Filter by size"]').selectOption(String(least));
      const expected = await page.evaluate((size) => {
        let count = 0;
        for (let i = 0; i < window.gapless.allocations; i++) if (window.gapless.allocation(i).block >= size) count++;
        return count;
      }, least);
      assert.equal((await state(page, "found")).shown, expected);
      await page.locator('select[aria-label="Filter by size"]').selectOption("0");
      const kind = page.locator("button.key").first();
      if (await kind.count()) {
        const before = (await state(page, "found")).shown;
        await kind.click();
        assert.ok((await state(page, "found")).shown < before);
        assert.equal(await page.locator("button.key").first().getAttribute("aria-pressed"), "false");
        await page.locator("button.key").first().click();
        assert.equal((await state(page, "found")).shown, before);
      }
    });

    test("the segments at an instant add up to the report", async () => {
      const device = report.devices[0];
      await page.locator("#segments").scrollIntoViewIfNeeded();
      const slider = page.locator('.scrub input[type="range"]');
      for (const [name, at] of [["reserved", device.peak_at.reserved.tick], ["allocated", device.peak_at.allocated.tick]]) {
        await slider.fill(String(at));
        assert.equal(await state(page, "cursor"), at);
        const figures = await page.evaluate((tick) => window.gapless.at(tick), at);
        if (name === "reserved") assert.equal(figures.reserved, device.peak_reserved);
        const losses = device[`at_peak_${name}`].losses;
        await page.waitForFunction(
          ([all, free]) => {
            const text = document.querySelector(".segment-info").textContent;
            return text.startsWith(`${all} reserved`) && text.endsWith(`${free} free`);
          },
          [bytes(figures.reserved), bytes(losses.external)],
        );
      }
      const before = await state(page, "cursor");
      await slider.focus();
      await page.keyboard.press("ArrowRight");
      assert.equal(await state(page, "cursor"), before + 1);
      const map = await page.locator(".segments").boundingBox();
      await page.mouse.move(map.x + 12, map.y + 42);
      await page.waitForFunction(() => /block of .* at 0x[0-9a-f]+, in the segment of/.test(document.querySelector(".segment-info").textContent));
    });

    test("the axis, the theme, the keys and the link", async () => {
      await page.evaluate(() => window.scrollTo(0, document.getElementById("timeline").offsetTop - 60));
      const timeButton = page.locator('.choice[aria-label="Axis"] button[data-value="time"]');
      if (await timeButton.isVisible()) {
        await timeButton.click();
        await rest(page);
        const whole = await state(page, "whole");
        assert.ok(Math.abs(whole.x1 - report.devices[0].allocations) > 0);
        assert.equal(await timeButton.getAttribute("aria-pressed"), "true");
        await page.locator('.choice[aria-label="Axis"] button[data-value="event"]').click();
        await rest(page);
      }
      const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
      assert.equal(await theme(), "light");
      const box = await page.locator(".plot").boundingBox();
      const light = await pixel(page, box.x + box.width - 6, box.y + box.height - 12);
      await page.locator("#theme").click();
      assert.equal(await theme(), "dark");
      const dark = await pixel(page, box.x + box.width - 6, box.y + box.height - 12);
      assert.ok(light[0] > 200 && dark[0] < 60, `${light} and ${dark}`);
      await page.locator(".plot").focus();
      await page.keyboard.press("?");
      assert.equal(await page.locator("dialog.keys").evaluate((dialog) => dialog.open), true);
      await page.keyboard.press("Escape");
      assert.equal(await page.locator("dialog.keys").evaluate((dialog) => dialog.open), false);
      await page.locator(".plot").focus();
      for (const key of ["+", "+", "+", "d", "ArrowRight"]) await page.keyboard.press(key);
      await page.waitForFunction(() => window.gapless.resting && window.gapless.linked);
      const view = await state(page, "view");
      const link = await page.evaluate(() => location.hash);
      assert.match(link, /v=/);
      const again = await open(browser, html, link.slice(1));
      const same = await state(again.page, "view");
      for (const key of ["x0", "x1", "y0", "y1"]) assert.ok(Math.abs(same[key] - view[key]) <= 0.2, `${key} of the link`);
      assert.deepEqual(again.said, []);
      await again.context.close();
    });

    test("no exception, no console error, no request, and no markup from the trace", async () => {
      assert.deepEqual(said, []);
      assert.notEqual(await page.title(), "owned");
      assert.equal(await page.locator("img").count(), 0);
    });
  });
}

test("on a narrow screen nothing is cut off", async () => {
  const { page, context, said } = await open(browser, html, "", { viewport: { width: 700, height: 900 } });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 700, `${wide} pixels wide`);
  assert.deepEqual(said, []);
  await context.close();
});

test("dark is the default where the system is dark", async () => {
  const { page, context } = await open(browser, html, "", { colorScheme: "dark" });
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await context.close();
});
