// Values under the pointer. The page says everything without this.
"use strict";
for (const svg of document.querySelectorAll(".figure > svg")) {
  const figure = svg.parentElement;
  const [leftEdge, rightEdge] = [Number(svg.dataset.left), Number(svg.dataset.right)];
  const hair = svg.querySelector(".hair");
  const tip = figure.querySelector(".tip");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const box = svg.viewBox.baseVal;
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 999.5 && unit < 5) { value /= 1024; unit++; }
    return unit === 0 ? value + " B" : value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + units[unit];
  };
  const at = (ticks, tick) => {
    let low = 0, high = ticks.length;
    while (low < high) { const middle = (low + high) >> 1; if (ticks[middle] <= tick) low = middle + 1; else high = middle; }
    return low - 1;
  };
  const hide = () => { hair.setAttribute("hidden", ""); tip.hidden = true; };
  const show = (event) => {
    const rect = svg.getBoundingClientRect();
    const x = ((event.clientX - rect.left) / rect.width) * box.width;
    if (x < leftEdge || x > rightEdge) return hide();
    const tick = Math.round(((x - leftEdge) / (rightEdge - leftEdge)) * data.ticks);
    hair.removeAttribute("hidden");
    hair.setAttribute("x1", x); hair.setAttribute("x2", x);
    tip.replaceChildren();
    const head = document.createElement("p");
    head.textContent = "event " + tick.toLocaleString("en");
    const list = document.createElement("ul");
    const row = (value, name, key) => {
      const item = document.createElement("li"), amount = document.createElement("b"), text = document.createElement("span");
      amount.textContent = value; text.textContent = name;
      item.append(key, amount, text);
      list.append(item);
    };
    const keys = figure.parentElement.querySelectorAll(".legend .swatch");
    data.runs.forEach((run, i) => {
      const here = at(run.ticks, tick);
      const over = run.end !== null && tick > run.end;
      row(here < 0 ? "" : over ? "failed" : bytes(run.reserved[here]), run.name, keys[i].cloneNode(true));
    });
    const here = data.program ? at(data.program.ticks, tick) : -1;
    if (here >= 0) row(bytes(data.program.allocated[here]), "allocated", keys[data.runs.length].cloneNode(true));
    tip.append(head, list);
    tip.hidden = false;
    const left = event.clientX - rect.left + 12;
    tip.style.left = Math.max(0, Math.min(rect.width - tip.offsetWidth, left + 18 + tip.offsetWidth > rect.width ? left - tip.offsetWidth - 14 : left + 14)) + "px";
    tip.style.top = Math.max(8, event.clientY - rect.top - tip.offsetHeight / 2) + "px";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerleave", hide);
}
