// Light or dark, as the reader chose it. Some browsers keep no storage for files: the choice then lasts as long as the
// page.

export function storeTheme(theme: string): void {
  try {
    localStorage.setItem("gapless.theme", theme);
  } catch {
    // A browser without storage forgets the choice.
  }
}

export function storedTheme(): string | null {
  try {
    const stored = localStorage.getItem("gapless.theme");
    return stored === "light" || stored === "dark" ? stored : null;
  } catch {
    return null;
  }
}
