import { launch } from "./browser.mjs";
const [file, out, scheme = "light"] = process.argv.slice(2);
const b = await launch();
const c = await b.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: scheme });
const page = await c.newPage();
page.on("pageerror", (e) => console.log(e.message)); page.on("console", (m) => console.log(m.text()));
await page.goto(`file://${file}`);
await page.screenshot({ path: out, fullPage: false });
await b.close();
