// Printing: what is drawn follows the paper's width, details are open, and nothing waits to be scrolled to.

export function bindPrint(drawAll: () => void): void {
  let opened: HTMLDetailsElement[] = [];
  const begin = () => {
    for (const details of document.querySelectorAll<HTMLDetailsElement>("details:not([open])")) {
      details.open = true;
      opened.push(details);
    }
    document.documentElement.dataset["print"] = "1";
    drawAll();
  };
  const finish = () => {
    for (const details of opened) details.open = false;
    opened = [];
    delete document.documentElement.dataset["print"];
    drawAll();
  };
  window.addEventListener("beforeprint", begin);
  window.addEventListener("afterprint", finish);
  // The style of paper is in force now: canvases can measure themselves.
  matchMedia("print").addEventListener("change", (event) => (event.matches ? begin() : finish()));
}
