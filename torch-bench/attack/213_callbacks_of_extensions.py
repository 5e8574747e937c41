"""An extension keeps memory and has registered that it gives it up when torch has none left
(REGISTER_FREE_MEMORY_CALLBACK). Before a request fails torch asks it, in whichever thread, and the request is served;
with nothing to give, the request fails as usual, and one whose callback raises raises that."""
import ctypes
import threading

import extension
from common import *

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <atomic>
#include <mutex>
#include <vector>
static std::mutex mutex;
static std::vector<void*> kept;
static std::atomic<int> asked{0}, raises{0};
struct Spare : c10::FreeMemoryCallback {
  bool Execute() override {
    asked++;
    if (raises) TORCH_CHECK(false, "the callback fails");
    void* one = nullptr;
    { std::lock_guard<std::mutex> lock(mutex); if (kept.empty()) return false; one = kept.back(); kept.pop_back(); }
    c10::cuda::CUDACachingAllocator::raw_delete(one);
    return true;
  }
};
namespace c10 { REGISTER_FREE_MEMORY_CALLBACK("attack_spare", Spare) }
extern "C" {
int times() { return asked; }
int left() { std::lock_guard<std::mutex> lock(mutex); return (int)kept.size(); }
void shall_raise(int on) { raises = on; }
void drain() { while (left()) Spare().Execute(); }
int keep(size_t size) {
  try {
    void* one = c10::cuda::CUDACachingAllocator::raw_alloc(size);
    std::lock_guard<std::mutex> lock(mutex);
    kept.push_back(one);
    return 1;
  } catch (const std::exception&) { return 0; }
}
}
"""

start(limit=GIB)
library = extension.build(SOURCE)
library.keep.argtypes = [ctypes.c_size_t]
problems = []


def request(size):
    try:
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        return "served"
    except torch.OutOfMemoryError:
        return "out of memory"
    except RuntimeError as error:
        return "raised" if "the callback fails" in str(error) else repr(error)


for turn in range(5):
    if not library.keep(600 * MIB):
        problems.append("nothing can be kept")
    before = library.times()
    if request(700 * MIB) != "served" or library.times() == before or library.left():
        problems.append(f"turn {turn}: {library.times() - before} times asked, {library.left()} left")
    torch.cuda.empty_cache()
    # In a thread, on a stream of its own, in pieces.
    kept = sum(library.keep(200 * MIB) for _ in range(4))
    seen = []

    def elsewhere():
        with torch.cuda.stream(torch.cuda.Stream()):
            seen.append(request(300 * MIB))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if kept != 4 or seen != ["served"]:
        problems.append(f"turn {turn}: a thread was {seen} with {kept} kept")
    library.drain()
    torch.cuda.empty_cache()
if request(2 * GIB) != "out of memory":
    problems.append("a request beyond the limit does not fail")
library.keep(600 * MIB)
library.shall_raise(1)
if request(700 * MIB) != "raised":
    problems.append("what a callback raises is lost")
library.shall_raise(0)
if request(700 * MIB) != "served":
    problems.append("it is not served after a callback that raised")
torch.cuda.empty_cache()
if torch.cuda.memory_allocated() > 4096 or adds_up():
    problems.append(f"{torch.cuda.memory_allocated()} bytes are held, {adds_up()}")
done(not problems, f"{library.times()} times asked, {len(problems)} problems: {problems[:3]}")
