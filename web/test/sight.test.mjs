// First sight: what a reader clicks, searches and reads on screens of any width says what it should.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { launch, open } from "./browser.mjs";
import { pageOf } from "./pages.mjs";

let browser;
before(async () => (browser = await launch()));
after(() => browser?.close());

const WIDTHS = [360, 390, 700, 900, 1180, 1400, 1920];
const rest = (page) => page.waitForFunction(() => window.gapless.resting);
const still = { reducedMotion: "reduce" };
const reportOf = (path) => JSON.parse(readFileSync(path, "utf8").match(/id="report">(.*?)<\/script>/s)[1]);

/** The terminal's rule for bytes. */
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

const isInSight = (page, selector) =>
  page.evaluate((wanted) => {
    const box = document.querySelector(wanted).getBoundingClientRect();
    return box.top >= 0 && box.bottom <= innerHeight;
  }, selector);

test("nothing scrolls sideways at any width, neither the page nor a part of it", async () => {
  for (const name of ["report", "oom", "fit", "replay", "diff", "plan", "equal", "bare"]) {
    const html = pageOf(name);
    const context = await browser.newContext({ deviceScaleFactor: 1 });
    const page = await context.newPage();
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      await page.goto(`file://${html}`);
      if (name !== "replay" && name !== "diff") await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined);
      await page.evaluate(() => document.querySelectorAll("details").forEach((details) => (details.open = true)));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(wide <= width, `${name} at ${width}: ${wide} pixels wide`);
      const inner = await page.evaluate(() =>
        [...document.querySelectorAll("body *")]
          .filter((element) => /auto|scroll/.test(getComputedStyle(element).overflowX + getComputedStyle(element).overflowY) && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1))
          .map((element) => `${element.tagName}.${element.className}`),
      );
      assert.deepEqual(inner, [], `${name} at ${width}: parts that scroll`);
      const outside = await page.evaluate((limit) => [...document.querySelectorAll("main td, main th, main h2, main button, main li, main p")].filter((element) => element.getBoundingClientRect().right > limit + 1 && getComputedStyle(element).display !== "none" && !element.closest(".flame, .crumbs, .plot")).map((element) => `${element.tagName} ${element.textContent.slice(0, 40)}`), width);
      assert.deepEqual(outside, [], `${name} at ${width}: parts that are cut off`);
    }
    await context.close();
  }
});

test("the panel shows the whole stack without a scroll of its own", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", { viewport: { width: 1400, height: 800 }, ...still });
  await page.locator('.top-holders button[data-rank="1"]').click();
  const frames = await page.locator(".panel .stack > li").count();
  assert.ok(frames > 4, `${frames} frames`);
  const cut = await page.evaluate(() => {
    const panel = document.querySelector(".panel");
    for (let at = panel; at && at !== document.body; at = at.parentElement) if (at.scrollHeight > at.clientHeight + 1 && getComputedStyle(at).overflowY !== "visible") return at.className;
    return "";
  });
  assert.equal(cut, "", "no part around the stack cuts it");
  const last = page.locator(".panel .stack > li").last();
  await last.scrollIntoViewIfNeeded();
  assert.ok(await last.isVisible());
  assert.deepEqual(said, []);
  await context.close();
});

test("a holder that is clicked says what it held at the peak first, and that the rest is over all steps", async () => {
  const html = pageOf("report");
  const { holders, steps } = reportOf(html).devices[0];
  const { page, said, context } = await open(browser, html, "", still);
  for (const holder of holders) {
    await page.locator(`.holders tr[data-rank="${holder.rank}"]`).click();
    const { found } = await page.evaluate(() => ({ found: window.gapless.found }));
    assert.deepEqual([found.peakCount, found.peakBytes], [holder.count, holder.bytes], `holder ${holder.rank}`);
    const first = `${bytes(holder.bytes)} at the peak in ${holder.count} block${holder.count === 1 ? "" : "s"}`;
    for (const where of [".found", "#lit-found"]) {
      const told = (await page.locator(where).textContent()).replace(/^Holder \d+: /, "");
      assert.ok(told.startsWith(first), `${told} begins with ${first}`);
      if (found.count > holder.count) assert.ok(told.includes(`; over all ${steps.count} steps ${found.count.toLocaleString("en-US")} allocations, ${bytes(found.bytes)} in turn`), told);
    }
    assert.equal(await page.locator("#lit-bytes").textContent(), bytes(holder.bytes));
    assert.ok(await isInSight(page, ".plot"), "the timeline is in sight");
  }
  assert.deepEqual(said, []);
  await context.close();
});

test("what has no stack says why, and what to do", async () => {
  const { page, context } = await open(browser, pageOf("report"), "", still);
  const bare = reportOf(pageOf("report")).devices[0].holders.find((holder) => !holder.stack?.length);
  assert.match(await page.locator(`.holders tr[data-rank="${bare.rank}"] .why`).textContent(), /no Python frame.*stacks="all"/);
  await page.locator(`.holders tr[data-rank="${bare.rank}"]`).click();
  assert.match(await page.locator("#no-stack").textContent(), /no Python frame/);
  await context.close();
  const other = await open(browser, pageOf("bare"), "", still);
  await other.page.locator('.holders tr[data-rank="1"]').click();
  assert.match(await other.page.locator("#no-stack").textContent(), /recorded without stacks: record with context="all" and stacks="python"/);
  assert.match(await other.page.locator('.holders tr[data-rank="1"] .why').textContent(), /recorded without stacks/);
  await other.context.close();
});

test("search and the keys of the timeline bring it into sight from anywhere", async () => {
  const { page, context } = await open(browser, pageOf("report"), "", { viewport: { width: 1400, height: 900 }, ...still });
  for (const key of ["/", "p", "g", "n"]) {
    for (const from of [0, 1e6]) {
      await page.evaluate((y) => {
        document.activeElement.blur();
        scrollTo(0, y);
      }, from);
      assert.equal(await isInSight(page, ".plot"), false, "it begins out of sight");
      await page.keyboard.press(key);
      await rest(page);
      assert.ok(await isInSight(page, ".plot"), `${key} from ${from}`);
      if (key === "/") assert.equal(await page.evaluate(() => document.activeElement.type), "search");
    }
  }
  await context.close();
});

/** Types `word` into the search, and says what it finds. */
const find = (page, word) =>
  page.evaluate(async (text) => {
    const field = document.querySelector(".search input");
    field.value = text;
    field.dispatchEvent(new Event("input"));
    while (window.gapless.query !== text.trim()) await new Promise((done) => setTimeout(done, 20));
    return window.gapless.found;
  }, word);

test("search finds whatever words the page shows", async () => {
  for (const name of ["report", "oom", "streams"]) {
    const { page, context } = await open(browser, pageOf(name), "", still);
    await page.locator(".plot").focus();
    await page.keyboard.press("z");
    await page.locator('.top-holders button[data-rank="1"]').click();
    const words = await page.evaluate(() => {
      const texts = (selector) => [...document.querySelectorAll(selector)].map((element) => element.textContent.trim());
      const facts = Object.fromEntries([...document.querySelectorAll(".chosen .facts dt")].map((dt) => [dt.textContent, dt.nextElementSibling.textContent]));
      const groups = document.querySelector("canvas.segments").getAttribute("aria-label").split(": ")[1].split("; ").map((text) => text.split(", ")[0]);
      const few = (list) => [...new Set(list)].slice(0, 6).concat([...new Set(list)].slice(-3));
      return [
        "stream 0",
        ...[...document.querySelectorAll("button.key")].filter((key) => !key.textContent.endsWith(" 0 B") && !/ ?0 B$/.test(key.querySelector(".amount").textContent.replace(/[\d.]*[1-9][\d.]* /, "x"))).map((key) => key.dataset.kind),
        ...few(texts(".flame > button > span")),
        ...few(texts(".where .inner")),
        ...groups,
        `stream ${facts["stream"]}`,
        facts["pool"],
        `segment at ${facts["segment"].split(" at ")[1]}`,
        facts["address"],
        facts["requested"].split(" (")[0],
        ...few(texts(".stack > li > b")),
        ...few(texts(".stack > li > span")),
      ].filter((word) => word && word !== "all");
    });
    // A run without steps has no step to search.
    if (reportOf(pageOf(name)).devices[0].steps.count > 1) words.push("step 1");
    const byModule = page.locator('.choice[aria-label="Colour"] button[data-value="module"]');
    if (await byModule.count()) await byModule.click();
    words.push(...(await page.locator(".legend .key > span:not(.amount)").allTextContents()).filter((text) => text.includes("/")));
    await page.locator(".sizes button").first().waitFor();
    words.push(...(await page.locator(".sizes button > span:first-child").allTextContents()).slice(0, 1));
    assert.ok(words.length > 20, `${words.length} words`);
    for (const word of new Set(words)) {
      // Events of segments name no allocation.
      if (/^(expandable )?segment at/.test(word) && !word.includes("0x")) continue;
      assert.ok((await find(page, word)).count > 0, `${name}: "${word}" is on the page, and is not found`);
    }
    assert.equal((await find(page, "no such thing anywhere")).count, 0);
    await context.close();
  }
});

test("step 1 is not step 10, and words of several places are found together", async () => {
  const { page, context } = await open(browser, pageOf("report"), "", still);
  const count = async (text) => (await find(page, text)).count;
  assert.equal(await count("step 10"), 0);
  const [both, one, other] = [await count("activations adam.py:182"), await count("gpt2.py"), await count("activations gpt2.py")];
  assert.ok(other > 0 && other <= one, `${other} of ${one}`);
  assert.equal(both, await count("adam.py:182 activations"));
  await context.close();
});

test("on a phone the end of a holder's name is in sight", async () => {
  const { page, context } = await open(browser, pageOf("oom"), "", { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  for (const selector of [".top-holders .name", "#holders .where .name", "#events .where .name"]) {
    const hidden = await page.locator(selector).evaluateAll((names) =>
      names.flatMap((name) => {
        const box = name.getBoundingClientRect();
        const inner = name.querySelector(".inner");
        const range = document.createRange();
        const walker = document.createTreeWalker(inner, NodeFilter.SHOW_TEXT);
        let text = null;
        while (walker.nextNode()) text = walker.currentNode;
        range.setStart(text, text.length - 1);
        range.setEnd(text, text.length);
        const end = range.getBoundingClientRect();
        return end.right <= box.right + 1 && end.left >= box.left && box.right <= innerWidth ? [] : [inner.textContent];
      }),
    );
    assert.deepEqual(hidden, [], `${selector}: names whose end is cut off`);
    assert.ok((await page.locator(selector).count()) > 4, selector);
  }
  await context.close();
});

test("the flame graph's breadcrumb is the whole way, and each part goes there", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", still);
  const deepest = await page.locator(".flame > button").evaluateAll((all) => all.reduce((best, one, k) => (Number(one.ariaLevel) > Number(all[best].ariaLevel) ? k : best), 0));
  const level = Number(await page.locator(".flame > button").nth(deepest).getAttribute("aria-level"));
  assert.ok(level > 8);
  await page.locator(".flame > button").nth(deepest).evaluate((element) => element.click());
  const more = page.locator(".crumbs button", { hasText: /^\d+ more$/ });
  assert.equal(await more.count(), 1, "a long way folds in the middle");
  await more.click();
  assert.equal(await page.locator(".crumbs button, .crumbs b").count(), level, "one part for each row above");
  const names = await page.locator(".crumbs button").allTextContents();
  const boxes = await page.locator(".crumbs button").evaluateAll((all) => all.map((one) => one.getBoundingClientRect().right <= innerWidth));
  assert.ok(boxes.every(Boolean), "all parts are in sight");
  await page.locator(".crumbs button").nth(4).click();
  assert.equal(await page.locator(".crumbs b").textContent(), names[4]);
  assert.equal(await page.locator(".flame > button").first().locator("span").textContent(), names[4]);
  await page.locator(".crumbs button").first().click();
  assert.equal(await page.locator(".crumbs b").textContent(), "All");
  assert.deepEqual(said, []);
  await context.close();
});

test("equal ranks have no worst one, and the title names the run", async () => {
  const { page, said, context } = await open(browser, pageOf("equal"));
  assert.equal(await page.locator("#ranks-worst").textContent(), "all are equal");
  assert.match(await page.locator("#ranks-worst + .note").textContent(), /on each of 3 ranks$/);
  assert.equal(await page.locator("#ranks-median").count(), 0);
  assert.equal(await page.locator("#shown-rank").textContent(), "Rank 0");
  assert.equal(await page.locator("h1").textContent(), "3 ranks, rank0.pickle.gz … rank2.pickle.gz");
  await page.locator(".strip").click({ position: { x: 200, y: 50 } });
  assert.match(await page.locator("#strip").textContent(), /gapless report \S*rank2\.pickle\.gz --open/, "the command names one file");
  assert.deepEqual(said, []);
  await context.close();
});

test("words of the trade explain themselves on hover, by keyboard and by a tap", async () => {
  const { page, said, context } = await open(browser, pageOf("oom"), "", still);
  const terms = page.locator(".term:visible");
  const words = new Set(await terms.evaluateAll((all) => all.map((one) => one.dataset.term)));
  for (const word of ["stranded", "reserved", "allocated", "active", "fragmentation", "rounding", "unexplained", "scopes", "steps", "pending", "free", "live", "instant", "inferred", "cached free", "activations"]) assert.ok(words.has(word), `${word} is explained`);
  const tip = page.locator("#explanation");
  for (const word of words) {
    const one = page.locator(`.term[data-term="${word}"]:visible`).first();
    await one.focus();
    assert.ok(await tip.isVisible(), `${word} by keyboard`);
    assert.ok((await tip.textContent()).length > 20, word);
    assert.equal(await one.getAttribute("aria-describedby"), "explanation");
    const box = await tip.boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 1500 && box.y >= 0 && box.y + box.height <= 1000, `${word} is in sight`);
    await page.keyboard.press("Escape");
    assert.equal(await tip.isVisible(), false, "escape hides it");
  }
  await page.mouse.move(0, 0);
  await page.locator('.term[data-term="stranded"]').first().hover();
  assert.match(await tip.textContent(), /cannot give it back/);
  await page.mouse.move(2, 2);
  assert.equal(await tip.isVisible(), false);
  assert.deepEqual(said, []);
  await context.close();
  const phone = await open(browser, pageOf("report"), "", { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await phone.page.locator('.term[data-term="stranded"]').first().tap();
  assert.ok(await phone.page.locator("#explanation").isVisible());
  const box = await phone.page.locator("#explanation").boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= 390, "in sight on a phone");
  await phone.page.locator("h1").tap();
  assert.equal(await phone.page.locator("#explanation").isVisible(), false);
  await phone.context.close();
});

test("the replay page explains its heads, and draws for phones too", async () => {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 } });
  const page = await context.newPage();
  await page.goto(`file://${pageOf("replay")}`);
  const stranded = page.locator(".term", { hasText: "Stranded" });
  await stranded.focus();
  assert.ok(await stranded.locator("span").isVisible());
  await page.setViewportSize({ width: 390, height: 844 });
  assert.equal(await page.locator("svg.wide").isVisible(), false);
  const size = await page.locator("svg.narrow .tick").first().evaluate((text) => text.getBoundingClientRect().height);
  assert.ok(size >= 10, `letters of ${size} pixels`);
  assert.ok((await page.locator("svg.narrow").boundingBox()).height > 200);
  await page.locator("svg.narrow").hover();
  assert.ok(await page.locator(".figure .tip").isVisible());
  await context.close();
});

test("findings stand in the report's order, by the bytes that can be won back, below what failed", async () => {
  for (const name of ["report", "oom"]) {
    const { findings } = reportOf(pageOf(name));
    const isError = (finding) => finding.severity === "error";
    const wanted = [...findings.filter(isError), ...findings.filter((finding) => !isError(finding))];
    const { page, context } = await open(browser, pageOf(name), "", still);
    const shown = await page.locator("#findings .finding").evaluateAll((all) => all.map((one) => one.textContent));
    assert.equal(shown.length, wanted.length);
    wanted.forEach((finding, i) => assert.ok(shown[i].includes(finding.headline), `${name} ${i}: ${shown[i]}`));
    await context.close();
  }
});

test("a plan asks for no recording, because its buffers never had stacks", async () => {
  const { page, context } = await open(browser, pageOf("plan"), "", still);
  const text = await page.evaluate(() => document.body.innerText);
  assert.ok(!/[Rr]ecord(ed)? with(out)? /.test(text), text.match(/.*[Rr]ecord(ed)? with.*/)?.[0]);
  assert.match(text, /Kinds are guesses: without steps, kinds cannot be told\./);
  await context.close();
});

test("on a phone every cell of a comparison has the head of its column", async () => {
  const context = await browser.newContext({ viewport: { width: 390, height: 844 } });
  const page = await context.newPage();
  await page.goto(`file://${pageOf("diff")}`);
  const bare = await page.evaluate(() =>
    [...document.querySelectorAll("tbody td:not(:first-child)")].filter((cell) => !getComputedStyle(cell, "::before").content.includes(cell.dataset.label || "no label")).map((cell) => cell.textContent),
  );
  assert.deepEqual(bare, []);
  assert.ok((await page.locator("tbody td[data-label=Change]").count()) > 0);
  await context.close();
});
