// A headless browser for the tests: Debian's chromium, an empty profile, software rendering.

import { chromium } from "playwright-core";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/**
 * The page under test and the report that it must agree with: given by the environment, else made by the crate's
 * example.
 */
export function subject() {
  let html = process.env.REPORT_HTML;
  let json = process.env.REPORT_JSON;
  if (!html || !json) {
    html = join(mkdtempSync(join(tmpdir(), "gapless-page-")), "page.html");
    json = html + ".json";
    execFileSync("cargo", ["run", "--quiet", "--release", "--package", "gapless-page", "--example", "page", "--", html, "12000"], { cwd: root, stdio: "inherit" });
  }
  return { html, report: JSON.parse(readFileSync(json, "utf8")) };
}

/** A step that takes longer hangs: a machine that does other work too takes minutes for what takes a second alone. */
const PATIENCE = 600_000;

export async function launch() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--use-angle=swiftshader",
      "--enable-unsafe-swiftshader",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const make = browser.newContext.bind(browser);
  browser.newContext = async (options) => {
    const context = await make(options);
    context.setDefaultTimeout(PATIENCE);
    return context;
  };
  return browser;
}

/** Opens `html`; `said` collects what the page must never do: console errors, exceptions, requests. */
export async function open(browser, html, hash, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1500, height: 1000 }, deviceScaleFactor: 1, colorScheme: "light", ...options });
  const page = await context.newPage();
  const said = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") said.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => said.push(`exception: ${error.stack ?? error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith("file://") && !request.url().startsWith("data:")) said.push(`request: ${request.url()}`);
  });
  await page.goto(`file://${html}${hash ? `#${hash}` : ""}`);
  await page.waitForFunction(() => document.documentElement.dataset.ready !== undefined);
  return { page, said, context };
}

/** The colour of one pixel of what is on the screen. */
export async function pixel(page, x, y) {
  const shot = await page.screenshot({ clip: { x: Math.floor(x), y: Math.floor(y), width: 1, height: 1 } });
  const blank = await page.context().newPage();
  const color = await blank.evaluate(async (data) => {
    const image = new Image();
    image.src = "data:image/png;base64," + data;
    await image.decode();
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  }, shot.toString("base64"));
  await blank.close();
  return color;
}
