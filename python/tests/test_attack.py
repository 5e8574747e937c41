"""Programs of torch-bench/attack whose verdict needs no kernel: statistics, histories, refusals, processes. The others
need a card (torch-bench/live/attack.py)."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

ATTACK = Path(__file__).resolve().parents[2] / "torch-bench" / "attack"
NAMES = (
    "130_pool_taken_twice",
    "131_threads_of_c",
    "132_failures_profiled",
    "133_cards_that_are_not",
    "138_books_by_class",
    "140_spare_pools",
    "147_observers",
    "149_regions_budgets_pools",
    "154_shared_then_asleep",
    "155_totals_begin_again",
    "160_questions_first",
    "161_environments",
    "163_viewers",
    "164_small_stacks",
    "165_handles_by_hand",
    "166_files_closed",
    "169_nothing_left",
    "174_used_elsewhere_in_a_capture",
    "175_tags_that_sleep",
    "178_registered_and_asleep",
    "179_many_open_at_once",
    "180_dropped_beside_captures",
    "181_pools_without_end",
    "182_host_memory_stays",
    "183_same_story",
    "184_context_of_a_thread",
    "185_within_its_own_functions",
    "186_questions_of_a_child",
    "187_pools_in_a_child",
    "188_allocator_in_python",
    "189_sanitized",
    "192_tasks",
    "193_same_schema",
    "210_notes_of_threads",
    "211_settings_of_the_program",
    "212_ends_without_beginnings",
    "213_callbacks_of_extensions",
    "214_pools_of_other_streams",
    "215_failures_counted",
    "216_pictures_of_pools",
    "217_switched_off",
    "218_notes_of_newer_releases",
    "219_lazy_copies",
    "220_shared_out_of_pools",
    "221_asked_of_the_allocator",
    "222_streams_of_torch_captured",
    "303_handles_of_any_stream",
    "304_signals_while_it_opens",
    "305_captured_at_any_moment",
    "316_children_beside_elastic",
)
# The release from which on a program applies.
SINCE = {"218_notes_of_newer_releases": (2, 15)}


@pytest.mark.parametrize("name", NAMES)
def test_what_native_survives_survives_here(real, name):
    done = real.start([sys.executable, ATTACK / f"{name}.py"], folder=ATTACK)
    last = done.out.splitlines()[-1] if done.out else ""
    release = tuple(int(part) for part in metadata.version("torch").split(".")[:2])
    wanted = (0, "PASS") if release >= SINCE.get(name, ()) else (77, "SKIP")
    assert (done.code, last.split(" ")[0]) == wanted, done.out + done.err
