"""A report in a notebook: a compact summary without scripts, and the whole page in a frame.

Names come from files that may be hostile, so every text is escaped. Colours follow the notebook's theme as far as it
tells one, else the system's.
"""

import html
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from ._stats import size_text

if TYPE_CHECKING:
    from ._report import Device, Report

# In the order in which they are shown: name in the JSON, name for people, colour. The colours are those of the report
# page, which people with any colour vision can tell apart.
KINDS = (
    ("weights", "weights", "#2f6db3"),
    ("gradients", "gradients", "#d4622f"),
    ("optimizer_state", "optimizer state", "#b072ab"),
    ("activations", "activations", "#2a9c82"),
    ("temporaries", "temporaries", "#e3ab3c"),
    ("unexplained", "unexplained", "#8b919b"),
    ("cached_free", "cached free", "#c9ced6"),
)

_DARK = """color-scheme:dark;--ink:#e6e9ed;--dim:#9aa3ad;--line:#3a4048;--tile:#22272e;--error:#ff8d85;--warning:#e6b450;--info:#79b8ff;"""
_LIGHT = """color-scheme:light;--ink:#1c2127;--dim:#5b6570;--line:#d5d9de;--tile:#f4f6f8;--error:#b3261e;--warning:#8a5a00;--info:#1a5fb4;"""


def _style() -> str:
    themes = "[data-jp-theme-light=false] .gapless,.vscode-dark .gapless,html[theme=dark] .gapless"
    return (
        f".gapless{{{_LIGHT}}}@media(prefers-color-scheme:dark){{.gapless{{{_DARK}}}}}"
        f"[data-jp-theme-light=true] .gapless,.vscode-light .gapless{{{_LIGHT}}}{themes}{{{_DARK}}}"
        ".gapless{font:13px/1.45 system-ui,sans-serif;color:var(--ink);max-width:860px}"
        ".gapless h4{margin:14px 0 6px;font-size:13px;font-weight:600}.gapless p{margin:2px 0;color:var(--dim)}"
        ".gapless .tiles{display:flex;flex-wrap:wrap;gap:8px;margin:8px 0}"
        ".gapless .tile{background:var(--tile);border:1px solid var(--line);border-radius:6px;padding:6px 12px;min-width:104px}"
        ".gapless .tile b{display:block;font-size:17px;font-weight:600}.gapless .tile span{color:var(--dim)}"
        ".gapless .bar{display:flex;height:14px;border-radius:3px;overflow:hidden;gap:1px;margin:4px 0}"
        ".gapless .key{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--dim)}"
        ".gapless .key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}"
        ".gapless table{border-collapse:collapse;margin:2px 0;background:none;font-size:13px}"
        ".gapless td{padding:2px 10px 2px 0;text-align:left;border:0;color:var(--ink);background:none;overflow-wrap:anywhere;vertical-align:top}"
        ".gapless td.w{white-space:nowrap;overflow-wrap:normal}"
        ".gapless td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
        ".gapless td.error{color:var(--error)}.gapless td.warning{color:var(--warning)}.gapless td.info{color:var(--info)}"
        ".gapless pre{white-space:pre;overflow:auto;background:none;color:var(--ink);font-size:12px;line-height:1.35}"
    )


def summary(report: "Report") -> str:
    """The report in short."""
    source = report.json["source"]
    about = " · ".join(text for text in (source["format"], source["producer"]) if text)
    parts = [f'<div class="gapless"><style>{_style()}</style><b>{_text(os.path.basename(report.path))}</b><p>{_text(about)}</p>']
    for device in report.devices:
        parts.append(_device(device, alone=len(report.devices) == 1))
    if report.host:
        parts.append(
            f"<h4>Pinned host memory</h4><p>at most {size_text(report.host['peak_held'])} held, {size_text(report.host['peak_in_use'])} in use; "
            "no part of the figures above</p>"
        )
    parts.append(_findings(report))
    parts.extend(f"<p>note: {_text(note)}</p>" for note in report.notes)
    parts.append("<p>report.show() shows the whole page, report.html(path) writes it</p></div>")
    return "".join(parts)


def preformatted(text: str) -> str:
    return f'<div class="gapless"><style>{_style()}</style><pre>{_text(text)}</pre></div>'


def _device(device: "Device", alone: bool) -> str:
    tiles = [
        ("peak reserved", _size(device.peak_reserved)),
        ("peak allocated", _size(device.peak_allocated)),
        ("fragmentation", "unknown" if device.fragmentation is None else f"{100 * device.fragmentation:.1f} %"),
        ("allocations", f"{device.json['allocations']:,}"),
        ("steps", f"{device.json['steps']['count']:,}"),
    ]
    out = "" if alone else f"<h4>Device {device.device}</h4>"
    out += '<div class="tiles">' + "".join(f'<div class="tile"><span>{name}</span><b>{_text(value)}</b></div>' for name, value in tiles) + "</div>"
    return out + _kinds(device.kinds) + _holders(device)


def _kinds(kinds: dict[str, int]) -> str:
    shown = [(colour, name, kinds.get(key, 0)) for key, name, colour in KINDS if kinds.get(key, 0) > 0]
    total = sum(size for _, _, size in shown)
    if not total:
        return ""
    told = ", ".join(f"{name} {size_text(size)}" for _, name, size in shown)
    bar = "".join(f'<div style="flex:{size / total:.6f} 0 0;background:{colour}" title="{name} {size_text(size)}"></div>' for colour, name, size in shown)
    key = "".join(f'<span><i style="background:{colour}"></i>{name} {size_text(size)}, {100 * size / total:.0f} %</span>' for colour, name, size in shown)
    return f'<h4>What the bytes are at peak allocated (inferred)</h4><div class="bar" role="img" aria-label="{told}">{bar}</div><div class="key">{key}</div>'


def _holders(device: "Device") -> str:
    if not device.holders:
        return ""
    rows = "".join(
        f'<tr><td class="n">{size_text(h.bytes)}</td><td class="n">{100 * h.share:.0f} %</td><td class="n">{h.count:,} ×</td>'
        f'<td class="w">{_text(h.kind)}</td><td>{_text(h.label)}</td></tr>'
        for h in device.holders
    )
    return f"<h4>Largest holders at peak allocated</h4><table>{rows}</table>"


def _findings(report: "Report") -> str:
    if not report.findings:
        return "<h4>No findings</h4>"
    rows = "".join(
        f'<tr><td class="w {_severity(f.severity)}">{_text(f.severity)}</td><td class="w">{_text(f.code)}</td>'
        f"<td>{_text(f.headline)}{f'<p>{_text(f.help)}</p>' if f.help else ''}</td></tr>"
        for f in report.findings
    )
    return f"<h4>Findings</h4><table>{rows}</table>"


def _severity(name: str) -> str:
    return name if name in ("error", "warning") else "info"


def _size(count: Optional[int]) -> str:
    return "unknown" if count is None else size_text(count)


def _text(text: str) -> str:
    return html.escape(text, quote=True)


class Page:
    """The whole page in a frame of its own: its scripts reach nothing of the notebook."""

    def __init__(self, content: str, height: int) -> None:
        self.content, self.height = content, int(height)

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts allow-downloads" loading="lazy" title="Gapless report"'
        return f'<iframe {frame} style="width:100%;height:{self.height}px;border:1px solid #8884" srcdoc="{_text(self.content)}"></iframe>'


def in_notebook() -> bool:
    """True if this process serves a notebook, which shows what a cell returns."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def open_browser(page: Page) -> Path:
    """Opens the page in the browser; the path of the file, which stays."""
    handle, name = tempfile.mkstemp(prefix="gapless-", suffix=".html")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(page.content)
    webbrowser.open(Path(name).as_uri())
    return Path(name)
