"""The figures of a stream as text."""

from typing import Any


def _bytes(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def shown(stats: dict[str, Any]) -> str:
    """A few lines: the weights and where they are, then the last pass that was timed beside the least it could take."""
    streamed = max(0, stats["weights"] - stats["resident"])
    lines = [
        f"{_bytes(stats['weights'])} of weights within {_bytes(stats['budget'])}: {_bytes(stats['resident'])} stay, {_bytes(streamed)} stream",
        f"  on the card  {_bytes(stats['on_card'])} now, {_bytes(stats['peak'])} at most",
    ]
    if "pass_seconds" in stats:
        least, whole = stats["least_seconds"], stats["pass_seconds"]
        over = f", {whole / least:.2f} times the least" if least else ""
        lines.append(
            f"  a pass       {1e3 * whole:.1f} ms{over} ({1e3 * least:.1f} ms); work {1e3 * stats['compute_seconds']:.1f} ms, "
            f"waits {1e3 * stats['waited_seconds']:.1f} ms"
        )
    if "link_speed" in stats:
        lines.append(f"  the link     {stats['link_speed'] / 1e9:.1f} GB/s")
    if stats["in_place"]:
        lines.append(f"  {stats['in_place']} times a weight found no room and was read over the link: raise the budget")
    return "\n".join(lines)
