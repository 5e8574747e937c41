"""The native library: where it is, and its functions with their types.

GAPLESS_LIBRARY names another file than the one in this package. Loading it starts nothing: CUDA is touched by the
first request for memory. Entries that newer builds add are looked up by `optional` and may be missing.
"""

import ctypes
import json
import os
from typing import Any, Optional

from ._errors import GaplessError

FILE_NAME = "libgapless_torch.so"

# Hooks go to torch as addresses, so only what Python itself calls has types here.
_CALLED: dict[str, tuple[Any, list[Any]]] = {
    "gapless_enable": (ctypes.c_int, [ctypes.c_char_p]),
    "gapless_last_error": (ctypes.c_char_p, []),
    "gapless_stats_json": (ctypes.c_size_t, [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]),
    "gapless_trim": (ctypes.c_size_t, [ctypes.c_int]),
    "gapless_reserve": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64]),
    "gapless_overlay": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p]),
}
_OPTIONAL: dict[str, tuple[Any, list[Any]]] = {
    "gapless_overlay_check": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p]),
    "gapless_overlay_try": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]),
    "gapless_overlay_word": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p]),
    "gapless_on_trace": (ctypes.c_int, [ctypes.c_void_p]),
    "gapless_try_hip": (ctypes.c_int, [ctypes.c_int]),
    "gapless_reset_peaks": (None, [ctypes.c_int]),
    "gapless_record": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64]),
    "gapless_record_end": (ctypes.c_uint64, []),
    "gapless_mark": (None, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
    "gapless_pause": (None, [ctypes.c_int]),
    "gapless_module_cell": (ctypes.c_void_p, []),
    "gapless_module_name": (None, [ctypes.c_uint32, ctypes.c_char_p]),
    "gapless_module_block": (None, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]),
    "gapless_snapshot": (ctypes.c_int, [ctypes.c_char_p]),
    "gapless_on_pressure": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_void_p]),
    "gapless_remove_pressure": (ctypes.c_int, [ctypes.c_uint64]),
    "gapless_oom_folder": (None, [ctypes.c_char_p]),
    "gapless_budget_open": (ctypes.c_int64, [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]),
    "gapless_budget_close": (None, [ctypes.c_int64]),
    "gapless_tenant": (ctypes.c_int, [ctypes.c_char_p]),
    "gapless_ration_end": (None, []),
    "gapless_python_ends": (None, []),
    "gapless_host_alloc": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "gapless_host_free": (ctypes.c_int, [ctypes.c_void_p]),
    "gapless_host_trim": (ctypes.c_uint64, []),
    "gapless_host_stats": (None, [ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_has_untold": (ctypes.c_int, []),
    "gapless_region_open": (ctypes.c_int64, [ctypes.c_char_p, ctypes.c_int]),
    "gapless_region_close": (None, [ctypes.c_int64]),
    "gapless_region_sleep": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_region_wake": (ctypes.c_int, [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_region_switch": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_region_prepare": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64]),
    "gapless_region_read": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]),
    "gapless_region_kept_at": (ctypes.c_void_p, [ctypes.c_uint64, ctypes.c_uint64]),
    "gapless_region_retain": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
    "gapless_region_files": (None, [ctypes.c_char_p]),
    "gapless_regions_json": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]),
    "gapless_asleep_json": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]),
    "gapless_is_asleep": (ctypes.c_int, [ctypes.c_uint64]),
    "gapless_mem_alloc": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]),
    "gapless_mem_free": (ctypes.c_int, [ctypes.c_void_p]),
    "gapless_mem_free_on": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "gapless_mem_record_stream": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "gapless_mem_stats": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]),
    "gapless_mem_last_code": (ctypes.c_int, []),
    "gapless_share": (
        ctypes.c_int,
        [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ],
    ),
    "gapless_unshare": (ctypes.c_int, [ctypes.c_char_p]),
    "gapless_attach_ask": (ctypes.c_int64, [ctypes.c_int, ctypes.c_char_p]),
    "gapless_attach_text": (ctypes.c_size_t, [ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]),
    "gapless_attach_count": (ctypes.c_size_t, [ctypes.c_int64]),
    "gapless_attach_map": (ctypes.c_int, [ctypes.c_int64, ctypes.c_void_p]),
    "gapless_attach_end": (None, [ctypes.c_int64]),
    "gapless_tensor_drop": (None, [ctypes.c_void_p]),
    "gapless_shared_bytes": (None, [ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_upload": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]),
    "gapless_elastic_pool": (ctypes.c_int64, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "gapless_elastic_close": (None, [ctypes.c_int64]),
    "gapless_elastic_new": (ctypes.c_int64, [ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p]),
    "gapless_elastic_want": (ctypes.c_int, [ctypes.c_int64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]),
    "gapless_elastic_trim": (ctypes.c_uint64, [ctypes.c_int64, ctypes.c_uint64]),
    "gapless_elastic_stats": (ctypes.c_int, [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_elastic_held": (None, [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
    "gapless_driver_entries": (ctypes.c_uint64, []),
    "gapless_region_codec": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "gapless_pinned_free": (None, [ctypes.c_int, ctypes.c_void_p]),
    "gapless_pinned_look": (ctypes.c_size_t, []),
    "gapless_usage": (ctypes.c_int, [ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]),
}


def path() -> str:
    """The path of the library. If there is no such file, the error says what to do."""
    named = os.environ.get("GAPLESS_LIBRARY")
    found = named or os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE_NAME)
    if not os.path.isfile(found):
        if named:
            raise GaplessError(f"GAPLESS_LIBRARY is {named}, and there is no such file: unset it to use the one that was installed")
        raise GaplessError(f"{found} is missing: this is a source tree or a damaged installation; run `pip install .` in the repository")
    return os.path.abspath(found)


class Library:
    """The loaded library. Calls turn its return codes into values and errors."""

    def __init__(self, file: str) -> None:
        self.file = file
        try:
            self._cdll = ctypes.CDLL(file)
        except OSError as error:
            raise GaplessError(f"the library cannot be loaded: {error}") from None
        for name, (result, arguments) in _CALLED.items():
            try:
                function = getattr(self._cdll, name)
            except AttributeError:
                raise GaplessError(f"{file} has no {name}: it is not of this version of gapless") from None
            function.restype, function.argtypes = result, arguments
        self._optional: dict[str, Any] = {}
        for name, (result, arguments) in _OPTIONAL.items():
            function = getattr(self._cdll, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
                self._optional[name] = function

    def address(self, name: str) -> int:
        """The address of a function: torch takes its hooks as addresses."""
        at = ctypes.cast(getattr(self._cdll, name), ctypes.c_void_p).value
        # A function that getattr has found has an address.
        assert at is not None
        return at

    def enable(self, options: str) -> Optional[str]:
        """None, or why the allocator cannot run here."""
        return None if self._cdll.gapless_enable(options.encode()) == 0 else self.last_error()

    def overlay(self, version: str, git_version: str) -> bool:
        """Puts the library's functions into torch's table; True if torch's own tools are answered natively now."""
        return bool(self._cdll.gapless_overlay(version.encode(), git_version.encode()) == 0)

    def stats(self, device: int) -> dict[str, Any]:
        room = 1 << 14
        while True:
            text = ctypes.create_string_buffer(room)
            length = self._cdll.gapless_stats_json(device, text, room)
            if length < room:
                found: dict[str, Any] = json.loads(text.raw[:length] or b"{}")
                return found
            room = 2 * length

    def trim(self, device: int) -> int:
        return int(self._cdll.gapless_trim(device))

    def reserve(self, device: int, size: int) -> None:
        if self._cdll.gapless_reserve(device, size) != 0:
            raise GaplessError(f"{size} bytes cannot be reserved on cuda:{device}: {self.last_error()}")

    def has(self, name: str) -> bool:
        return name in self._optional

    def optional(self, name: str, *arguments: Any) -> Any:
        if name not in self._optional:
            raise GaplessError(f"this build of the library has no {name}: update gapless")
        return self._optional[name](*arguments)

    def last_error(self) -> str:
        text = self._cdll.gapless_last_error()
        return text.decode("utf-8", "replace") if text else "no reason was given"
