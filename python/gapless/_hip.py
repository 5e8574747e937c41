"""AMD's cards, below torch for ROCm: tried in a forked child, because the trial starts HIP. Gapless was never run on
one of these cards; what it needs of them is tried, and a card that cannot do it keeps torch's own allocator."""

import os
from typing import Any, Optional

from . import _trial
from ._library import Library


def why_not(torch: Any, library: Library) -> Optional[str]:
    """None where Gapless can run on all cards that torch sees, else the reason."""
    if not library.has("gapless_try_hip"):
        return "this build of the library knows no cards of AMD: update gapless"
    # Also where another library has loaded NVIDIA's driver.
    os.environ.setdefault("GAPLESS_DRIVER", "hip")

    def work() -> str:
        for device in range(max(1, torch.cuda.device_count())):
            if library.optional("gapless_try_hip", device) != 0:
                return library.last_error()
        return _trial.FITS

    return _trial.why_not("AMD's cards", work)
