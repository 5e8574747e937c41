"""Predictions without a card against the figures of the card's allocator.

    python compare.py FOLDER [GAPLESS]     the folder that predict.py and measure.py wrote; the program `gapless`
"""

import json
import pathlib
import statistics
import subprocess
import sys

from programs_set_aside import HELD_BACK

folder, gapless = pathlib.Path(sys.argv[1]), (sys.argv[2:] or ["gapless"])[0]


def predicted(name):
    file = folder / "predicted" / f"{name}.requests.csv"
    if not file.exists() or file.read_text().count("\n") < 2:
        return None
    command = [gapless, "replay", str(file), "--with", "bfc:preallocate:0.75", "--capacity", "150109880320B", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["runs"][0]["peak_allocated"] if done.stdout else None


rows = []
for file in sorted((folder / "measured").glob("*.measured.json")):
    measured = json.loads(file.read_text())
    name, peak = measured["name"], measured["end"]["peak_bytes_in_use"]
    made = predicted(name)
    if measured["error"] or made is None:
        print(f"{name:<22} no comparison: {(measured['error'] or 'nothing predicted')[:120]}")
        continue
    rows.append((name, made, peak, made / peak - 1))
for name, made, peak, off in sorted(rows, key=lambda row: abs(row[3])):
    held = "set aside" if name in HELD_BACK else ""
    print(f"{name:<22}{made:>16}{peak:>16}{off:>+10.3%}  {held}")
for label, chosen in (("tuned on", [r for r in rows if r[0] not in HELD_BACK]), ("set aside", [r for r in rows if r[0] in HELD_BACK])):
    if chosen:
        offs = [abs(row[3]) for row in chosen]
        print(f"{label}: {len(offs)} programs, median {statistics.median(offs):.3%}, worst {max(offs):.3%}")
