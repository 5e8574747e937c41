// Opening another report in this page: by a button, or by dropping a file anywhere. No server takes part.

import { fill, h, life } from "./dom";

export class Opener {
  readonly element: HTMLElement;
  readonly failed = h("div", { id: "open-failed", role: "alert", hidden: true });
  private readonly input = h("input", { type: "file", accept: ".html,.htm,text/html", hidden: true, id: "open-file", "aria-label": "A report to open" });
  private readonly zone = h("div.drop", { hidden: true, "aria-hidden": "true" }, h("p", null, "Drop a report of Gapless to open it here"));

  /** `file` is what is open already, empty for the page's own report, which is called `own`. */
  constructor(file: string, own: string, open: (file: File) => Promise<void>) {
    const { input, zone } = this;
    const take = async (files: FileList | null | undefined) => {
      const [first] = files ?? [];
      this.failed.hidden = true;
      if (!first) return;
      if (files!.length > 1) return this.fail(`one report at a time: ${files!.length} files were given`);
      await open(first);
    };
    input.addEventListener("change", async () => {
      await take(input.files);
      // Emptied, so that the browser reports a second choice of the same file too.
      input.value = "";
    });
    this.element = h(
      "span.opener",
      null,
      file ? h("button", { class: "quiet", id: "own-report", title: `Back to ${own}`, onclick: () => location.reload() }, "← Back") : null,
      h("button", { class: "quiet", id: "open", title: "Open another report, written with --format html (O). It can also be dropped on the page.", onclick: () => this.ask() }, "Open…"),
      input,
      zone,
    );
    const { signal } = life.of;
    const hasFile = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    window.addEventListener("dragover", (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      zone.hidden = false;
    }, { signal });
    window.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) zone.hidden = true;
    }, { signal });
    window.addEventListener("drop", (event) => {
      zone.hidden = true;
      if (!hasFile(event)) return;
      event.preventDefault();
      void take(event.dataTransfer!.files);
    }, { signal });
  }

  /** The browser's dialog. */
  ask(): void {
    this.input.click();
  }

  fail(why: string): void {
    fill(this.failed, h("span", null, why), h("button", { class: "quiet", "aria-label": "Close", onclick: () => (this.failed.hidden = true) }, "×"));
    this.failed.hidden = false;
    this.failed.scrollIntoView({ block: "nearest" });
  }
}
