// Another report in the same page: by the file dialog and by a drop. A file may hold anything, and must not break the
// page, run anything, or ask the network.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { deflateRawSync, inflateRawSync } from "node:zlib";
import { launch, open } from "./browser.mjs";
import { pageOf } from "./pages.mjs";

let browser;
let folder;
before(async () => {
  browser = await launch();
  folder = mkdtempSync(join(tmpdir(), "gapless-open-"));
});
after(() => browser?.close());

const reportOf = (path) => JSON.parse(readFileSync(path, "utf8").match(/id="report">(.*?)<\/script>/s)[1]);
const file = (name, content) => {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
};

/** Opens `path` by the dialog; resolves when it is shown or refused. */
async function give(page, path) {
  await page.evaluate(() => {
    document.getElementById("open-failed").hidden = true;
    window.oldHeader = document.querySelector("header");
  });
  await page.locator("#open-file").setInputFiles(path);
  await page.waitForFunction(() => !document.getElementById("open-failed").hidden || (document.querySelector("header") !== window.oldHeader && (document.documentElement.dataset.ready !== undefined || !document.querySelector(".failed").hidden)));
  const failed = page.locator("#open-failed");
  return (await failed.isVisible()) ? (await failed.textContent()).replace(/×$/, "") : "";
}

test("another report takes the place of the first one, whole, and the way back is there", async () => {
  const { page, said, context } = await open(browser, pageOf("report"), "", { reducedMotion: "reduce" });
  await page.locator(".plot").focus();
  await page.keyboard.press("+");
  for (const name of ["oom", "fit", "equal", "streams", "report"]) {
    assert.equal(await give(page, pageOf(name)), "", name);
    await page.waitForFunction(() => window.gapless.resting);
    const title = readFileSync(pageOf(name), "utf8").match(/<title>([^<]*) · Gapless/)[1];
    assert.equal(await page.locator("h1").textContent(), title);
    assert.equal(await page.title(), `${title} · Gapless`);
    const { devices } = reportOf(pageOf(name));
    if (devices) {
      const { peak_active: active, allocations } = devices[0];
      assert.equal((await page.evaluate(() => window.gapless.peaks)).active, active, name);
      assert.equal(await page.evaluate(() => window.gapless.allocations), allocations, name);
    }
    assert.equal(await page.locator("main").count(), 1);
    assert.ok(await page.evaluate(() => window.gapless.view.x1 === window.gapless.whole.x1), "the view of the other file is gone");
  }
  // A key acts once: the listeners of the reports before are gone.
  const at = await page.evaluate(() => window.gapless.cursor);
  await page.locator(".plot").focus();
  await page.keyboard.press(",");
  assert.equal(await page.evaluate(() => window.gapless.cursor), at - 1);
  await page.keyboard.press("Escape");
  await page.locator("#theme").click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.locator("#own-report").click();
  await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined && !document.getElementById("own-report"));
  assert.equal(await page.locator("h1").textContent(), readFileSync(pageOf("report"), "utf8").match(/<title>([^<]*) · Gapless/)[1]);
  assert.deepEqual(said, []);
  await context.close();
});

test("a report can be dropped on the page", async () => {
  const { page, said, context } = await open(browser, pageOf("report"));
  const drop = (files) =>
    page.evaluate(
      async ([names, texts]) => {
        const data = new DataTransfer();
        names.forEach((name, k) => data.items.add(new File([texts[k]], name, { type: "text/html" })));
        const send = (type) => document.querySelector("main").dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
        const isTaken = !send("dragover");
        const isShown = !document.querySelector(".drop").hidden;
        send("drop");
        return [isTaken, isShown];
      },
      [files.map((path) => basename(path)), files.map((path) => readFileSync(path, "utf8"))],
    );
  assert.deepEqual(await drop([pageOf("oom"), pageOf("fit")]), [true, true]);
  assert.match(await page.locator("#open-failed").textContent(), /one report at a time: 2 files/);
  await drop([pageOf("oom")]);
  // The title stands before the events are drawn.
  await page.waitForFunction(() => document.querySelector("h1").textContent === "oom.pickle.gz" && document.documentElement.dataset.ready !== undefined && window.gapless.resting);
  assert.equal(await page.locator(".failed-request").count(), 1);
  assert.deepEqual(said, []);
  await context.close();
});

test("a file that is no report is refused with what it is and what to do", async () => {
  const { page, said, context } = await open(browser, pageOf("report"));
  const own = await page.locator("h1").textContent();
  const html = readFileSync(pageOf("oom"), "utf8");
  const root = fileURLToPath(new URL("../..", import.meta.url));
  const cases = [
    [file("empty.html", ""), /empty\.html is empty/],
    [file("note.txt", "hello"), /note\.txt is no report of Gapless: write a page with `gapless report/],
    [file("web.html", "<!doctype html><html><body>hello</body></html>"), /is a web page, but no report/],
    [pageOf("report", "json"), /is a report as JSON, which has no allocations: write a page/],
    [file("other.json", "{\"a\":1}"), /is JSON, but no report/],
    [join(root, "testdata/traces/gpt2_train_stacks.pickle.gz"), /is a snapshot or an archive, not a page/],
    [pageOf("replay"), /is another page of Gapless, of a replay or a comparison: open it by itself/],
    [file("cut.html", html.slice(0, html.indexOf('id="detail.0"') + 900)), /cut\.html ends too early/],
    [file("less.html", html.replace(/<script[^>]*id="detail\.0"[^<]*<\/script>/, "")), /the data of device 0 is missing/],
    [file("old.html", html.replace(/(id="tables">)([^<]*)/, (_, tag, text) => tag + changed(text, (data) => { data[0] = 4; }))), /layout 4, this page reads 5/],
    [file("missing.html", html.replace(/<script[^>]*id="rects\.0"[^<]*<\/script>/, "")), /the data of device 0 is missing/],
  ];
  for (const [path, words] of cases) {
    assert.match(await give(page, path), words, basename(path));
    assert.equal(await page.locator("h1").textContent(), own, "the report that was there stays");
    assert.ok((await page.evaluate(() => window.gapless.allocations)) > 0);
  }
  assert.deepEqual(said, []);
  await context.close();
});

/** A section with `change` made to its bytes. */
function changed(text, change) {
  const data = inflateRawSync(Buffer.from(text, "base64"));
  change(data);
  return deflateRawSync(data).toString("base64");
}

/** Numbers that look random, the same in every run. */
function noise(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

test("reports with any bytes and any JSON are refused or shown, and nothing breaks or runs", async () => {
  const { page, said, context } = await open(browser, pageOf("report"));
  const html = readFileSync(pageOf("oom"), "utf8");
  const next = noise(7);
  const wrong = [null, -1, 1e300, "x", [], {}, true, "<img src=x onerror=document.title='owned'>", { toString: 1, __proto__: 5 }, [[]], [null]];
  const ids = ["tables", "rects.0", "detail.0"];
  const outcomes = { shown: 0, refused: 0 };
  for (let round = 0; round < 60; round++) {
    let text = html;
    if (round % 2) {
      const id = ids[next(3)];
      text = text.replace(new RegExp(`(id="${id.replace(".", "\\.")}">)([^<]*)`), (_, tag, section) =>
        tag + changed(section, (data) => {
          for (let k = 0; k < 1 + next(4); k++) data[next(Math.min(data.length, round % 4 === 1 ? 60 : data.length))] = next(256);
        }));
    } else {
      // One member, or one item, anywhere in the report, becomes another thing.
      text = text.replace(/(id="report">)([^<]*)/, (_, tag, json) => {
        const report = JSON.parse(json);
        const places = [];
        const walk = (value) => {
          if (typeof value !== "object" || value === null) return;
          for (const key of Object.keys(value)) {
            places.push([value, key]);
            walk(value[key]);
          }
        };
        walk(report);
        for (let k = 0; k < 6; k++) {
          const [of, key] = places[next(round < 20 ? Math.min(places.length, 80) : places.length)];
          of[key] = wrong[next(wrong.length)];
        }
        return tag + JSON.stringify(report).replaceAll("<", "\\u003c");
      });
    }
    const failed = await give(page, file("any.html", text));
    if (failed) {
      assert.match(failed, /^any\.html (cannot be shown: |is )/, failed);
      outcomes.refused++;
    } else outcomes.shown++;
    await page.waitForFunction(() => window.gapless.resting);
    // Whatever is shown can be used.
    if (!failed && (await page.locator(".top-holders button").count())) await page.locator(".top-holders button").first().evaluate((button) => button.click());
    assert.deepEqual(said, [], `round ${round}`);
    assert.notEqual(await page.title(), "owned");
    assert.equal(await page.locator("img").count(), 0);
  }
  assert.ok(outcomes.shown > 10 && outcomes.refused > 5, JSON.stringify(outcomes));
  await context.close();
});

test("a small file that inflates without end is refused", async () => {
  const { page, said, context } = await open(browser, pageOf("report"));
  const bomb = deflateRawSync(Buffer.alloc(2 ** 30 + 2 ** 20), { level: 9 }).toString("base64");
  const html = readFileSync(pageOf("oom"), "utf8").replace(/(id="tables">)([^<]*)/, (_, tag) => tag + bomb);
  assert.match(await give(page, file("bomb.html", html)), /larger than 1073741824 bytes/);
  assert.deepEqual(said, []);
  await context.close();
});
