import { launch, open } from "./browser.mjs";
const [file, out, hash = "", scheme = "light", full = ""] = process.argv.slice(2);
const b = await launch();
const { page, said } = await open(b, file, hash, { viewport: { width: 1440, height: 900 }, colorScheme: scheme });
await page.waitForFunction(() => window.gapless.resting);
await page.screenshot({ path: out, fullPage: full === "full" });
console.log(said);
await b.close();
