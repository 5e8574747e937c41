"""AMD's cards, below torch for ROCm. Gapless was never run on one of them, so a forked child tries the functions that
it needs (the trial starts HIP). If they fail, torch's own allocator stays."""

import os
from typing import Any, Optional

from . import _trial
from ._library import Library


def why_not(torch: Any, library: Library) -> Optional[str]:
    """None if Gapless can run on all cards that torch sees, else the reason."""
    if not library.has("gapless_try_hip"):
        return "this build of the library knows no cards of AMD: update gapless"
    # Named, because another library may have loaded NVIDIA's driver in this process.
    os.environ.setdefault("GAPLESS_DRIVER", "hip")

    def work() -> str:
        for device in range(max(1, torch.cuda.device_count())):
            if library.optional("gapless_try_hip", device) != 0:
                return library.last_error()
        return _trial.FITS

    return _trial.why_not("AMD's cards", work)
