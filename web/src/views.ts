// The devices of a report: the page shows one, whose columns are read when it is opened.

import type { App } from "./app";
import { Device, StackBook } from "./device";
import { life } from "./dom";
import { applyLink, type Link } from "./link";
import { readDetail, readRects, readTables } from "./payload";
import type { Plot } from "./plot";
import type { Source } from "./source";

export class Views {
  private readonly loaded = new Map<number, Promise<Device | null>>();
  private readonly books = new Map<string, Promise<StackBook | null>>();

  constructor(private readonly app: App, private readonly source: Source, private readonly link: Link, private readonly plot: Plot, private readonly failed: HTMLElement) {}

  /** The device with the columns of its first section. */
  private load(index: number): Promise<Device | null> {
    const { source, loaded } = this;
    let device = loaded.get(index);
    const view = source.views[index];
    if (!device) {
      device = source.section(`${view.prefix}rects.${view.device}`).then((data) => (data ? new Device(readRects(data)) : null));
      loaded.set(index, device);
    }
    return device;
  }

  async open(index: number): Promise<void> {
    const { app, source, link, books } = this;
    const { signal } = life.of;
    try {
      const view = source.views[index];
      const device = view ? await this.load(index) : null;
      if (!view || !device) throw new Error(`the report has no data of device ${index}`);
      app.report = view.report;
      app.viewIndex = index;
      app.deviceIndex = view.device;
      app.device = device;
      app.selected = app.hovered = -1;
      app.holder = app.branch = app.span = null;
      app.litStack = -1;
      app.mode = device.rects.y ? "packed" : "stacked";
      app.filter = { least: 0, stream: -1, hiddenKinds: new Set() };
      app.cursor = app.peakTick;
      let book = books.get(view.prefix);
      if (!book) books.set(view.prefix, (book = source.section(`${view.prefix}tables`).then((data) => (data ? new StackBook(readTables(data)) : null))));
      app.stacks = await book;
      // The report's JSON writes `optimizer_state`, people write `optimizer state`: one spelling here.
      app.kinds = app.stacks?.tables.kinds.map((kind) => kind.replaceAll(" ", "_")) ?? [];
      app.colorBy = app.kinds.length && device.rects.kind.some((k) => k > 0) ? "kind" : app.stacks?.any ? "module" : "size";
      app.view = app.whole;
      app.remark();
      const first = new Promise<void>((done) => {
        this.plot.firstPicture = () => {
          performance.mark("gapless-first-picture");
          done();
        };
      });
      app.emit("device", "mode", "view");
      await first;
      if (!device.detail) {
        const data = await source.section(`${view.prefix}detail.${view.device}`);
        if (data) device.complete(readDetail(data, device.rects));
      }
      if (signal.aborted) return;
      if (index === (link.device ?? 0)) applyLink(app, link);
      else app.view = app.whole;
      app.remark();
      app.emit("device", "detail", "view", "cursor", "select", "span");
      performance.mark("gapless-complete");
      document.documentElement.dataset.ready = String(index);
    } catch (error) {
      this.failed.hidden = false;
      this.failed.textContent = `This report cannot be shown: ${error instanceof Error ? error.message : String(error)}. Write it again with \`gapless report FILE --format html\`; a browser older than 2023 may lack what it needs.`;
    }
  }
}
