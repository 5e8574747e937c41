// Printing: the pictures follow the paper's width, in light, with details open; nothing waits to be scrolled to.

import { life } from "./dom";

export interface Printed {
  /** Light for paper, and back to what the screen had. */
  light(isPaper: boolean): void;
  /** Every canvas, now, at the size that it has now. */
  drawAll(): void;
}

export function bindPrint(page: Printed): void {
  const root = document.documentElement;
  let opened: HTMLDetailsElement[] = [];
  const begin = () => {
    // Both events come for one print, the second when the style of paper is in force and canvases can be measured.
    if (root.dataset["print"] === undefined) {
      root.dataset["print"] = "1";
      opened = [...document.querySelectorAll<HTMLDetailsElement>("details:not([open])")];
      for (const details of opened) details.open = true;
      page.light(true);
    }
    page.drawAll();
  };
  const finish = () => {
    if (root.dataset["print"] === undefined) return;
    delete root.dataset["print"];
    for (const details of opened) details.open = false;
    page.light(false);
    page.drawAll();
  };
  const { signal } = life.of;
  window.addEventListener("beforeprint", begin, { signal });
  window.addEventListener("afterprint", finish, { signal });
  matchMedia("print").addEventListener("change", (event) => (event.matches ? begin() : finish()), { signal });
}
