// Light or dark, as the reader chose it. Some browsers keep no storage for files: the choice then lasts as long as the
// page.

import type { App } from "./app";
import { readTheme } from "./colors";

function storeTheme(theme: string): void {
  try {
    localStorage.setItem("gapless.theme", theme);
  } catch {
    // A browser without storage forgets the choice.
  }
}

function storedTheme(): string | null {
  try {
    const stored = localStorage.getItem("gapless.theme");
    return stored === "light" || stored === "dark" ? stored : null;
  } catch {
    return null;
  }
}

/** Light or dark on the page that `app` shows: as the reader chose, else as the system has it. */
export function followTheme(app: App, button: HTMLElement, signal: AbortSignal): { apply: (chosen: string | null) => void; toggle: () => void } {
  const system = matchMedia("(prefers-color-scheme: dark)");

  function apply(chosen: string | null): void {
    document.documentElement.dataset["theme"] = chosen ?? (system.matches ? "dark" : "light");
    app.theme = readTheme();
    button.textContent = app.theme.dark ? "Light" : "Dark";
    button.setAttribute("aria-label", app.theme.dark ? "Switch to light" : "Switch to dark");
    if (app.device) app.recolor();
    app.emit("theme");
  }

  function toggle(): void {
    const next = app.theme.dark ? "light" : "dark";
    storeTheme(next);
    apply(next);
  }

  system.addEventListener("change", () => apply(storedTheme()), { signal });
  apply(storedTheme());
  return { apply, toggle };
}
