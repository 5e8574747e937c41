// The flame graph of differences: a click zooms, the pointer and the keyboard read out a branch.
"use strict";
// In a narrow window each row is a card, whose cells have the heads of their columns.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll("th")].map((head) => head.textContent);
  for (const row of table.querySelectorAll("tbody tr")) [...row.cells].slice(1).forEach((cell, i) => (cell.dataset.label = heads[i + 1] ?? ""));
}
for (const box of document.querySelectorAll(".flame-box")) {
  const tree = JSON.parse(box.querySelector("script").textContent);
  const [flame, said, field, whole] = [".flame", ".flame-said", "input", ".flame-bar button"].map((one) => box.querySelector(one));
  const children = tree.text.map(() => []);
  tree.parent.forEach((parent, i) => i && children[parent].push(i));
  let top = 0;
  const bytes = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 999.5 && unit < 5) { value /= 1024; unit++; }
    return unit === 0 ? value + " B" : value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + units[unit];
  };
  const change = (i) => {
    const by = tree.after[i] - tree.before[i];
    return by === 0 ? "same" : (by > 0 ? "+" : "−") + bytes(Math.abs(by));
  };
  const color = (i) => {
    const by = tree.after[i] - tree.before[i];
    const share = Math.min(1, Math.abs(by) / Math.max(1, tree.width[i]));
    const strength = by === 0 ? 0 : Math.round(12 + 58 * share);
    return `color-mix(in srgb, var(--${by > 0 ? "grew" : "shrank"}) ${strength}%, var(--soft))`;
  };
  const say = (i) => {
    const name = document.createElement("b");
    name.textContent = tree.text[i];
    said.replaceChildren(name, ` ${bytes(tree.before[i])} → ${bytes(tree.after[i])}, ${change(i)}`);
  };
  const draw = (focus) => {
    const query = field.value.trim().toLowerCase();
    const drawn = [];
    let deepest = 0;
    const place = (i, left, depth) => {
      const share = tree.width[i] / Math.max(1, tree.width[top]);
      if (share < 0.0015) return;
      deepest = Math.max(deepest, depth);
      const button = document.createElement("button");
      const hit = query !== "" && tree.text[i].toLowerCase().includes(query);
      button.type = "button";
      button.className = query === "" ? "" : hit ? "hit" : "miss";
      button.style.cssText = `left:${left * 100}%;width:${share * 100}%;top:${depth * 21}px;background:${color(i)}`;
      button.textContent = share > 0.03 ? `${tree.text[i]}  ${change(i)}` : "";
      button.setAttribute("aria-label", `${tree.text[i]}: ${bytes(tree.before[i])} before, ${bytes(tree.after[i])} after`);
      button.addEventListener("click", () => { top = i; draw(true); say(i); });
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => say(i));
      drawn.push(button);
      let at = left;
      for (const child of children[i]) {
        place(child, at, depth + 1);
        at += tree.width[child] / Math.max(1, tree.width[top]);
      }
    };
    place(top, 0, 0);
    flame.replaceChildren(...drawn);
    flame.style.height = `${(deepest + 1) * 21}px`;
    if (focus && drawn[0]) drawn[0].focus();
  };
  whole.addEventListener("click", () => { top = 0; draw(false); say(0); });
  field.addEventListener("input", () => draw(false));
  flame.addEventListener("keydown", (event) => { if (event.key === "Escape") { top = tree.parent[top]; draw(true); } });
  draw(false);
  say(0);
}
