// Prints when the first picture was there, for each page given: `npm run bench -- FILE.html ...`.

import { launch, open, subject } from "./browser.mjs";

const files = process.argv.slice(2);
const browser = await launch();
for (const html of files.length ? files : [subject().html]) {
  for (const renderer of ["webgl2", "canvas"]) {
    const times = [];
    for (let round = 0; round < 3; round++) {
      const { page, context } = await open(browser, html, `renderer=${renderer}`, { viewport: { width: 1600, height: 1000 } });
      const [first, complete, n] = await page.evaluate(() => [performance.getEntriesByName("gapless-first-picture")[0].startTime, performance.getEntriesByName("gapless-complete")[0].startTime, window.gapless.allocations]);
      // On a machine that others use too, the processor time says more than the clock.
      const session = await context.newCDPSession(page);
      await session.send("Performance.enable");
      const { metrics } = await session.send("Performance.getMetrics");
      const cpu = 1e3 * (metrics.find(({ name }) => name === "ProcessTime")?.value ?? NaN);
      times.push([first, complete, n, cpu]);
      await context.close();
    }
    const [first, complete, n, cpu] = times.sort((a, b) => a[0] - b[0])[1];
    console.log(`${html}: ${n} allocations, ${renderer}: first picture ${Math.round(first)} ms, complete ${Math.round(complete)} ms, ${Math.round(cpu)} ms of CPU`);
  }
}
await browser.close();
