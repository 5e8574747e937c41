// gapless.h from C++: memory with an owner, in several threads, and no exception at any time. Run by test_others.py.

#include "gapless.h"
#include <cstdio>
#include <memory>
#include <new>
#include <thread>
#include <vector>

struct Give {
    void *stream;
    void operator()(void *pointer) const { gapless_mem_free_on(pointer, stream); }
};
using Buffer = std::unique_ptr<void, Give>;

static Buffer allocate(std::size_t size, void *stream) {
    void *pointer = gapless_mem_alloc(size, 0, stream);
    if (!pointer) throw std::bad_alloc();  // the program's own choice
    return Buffer(pointer, Give{stream});
}

static void work(std::uintptr_t number, bool *fine) {
    void *stream = reinterpret_cast<void *>(0x5000 + number * 0x100);
    std::vector<Buffer> held;
    for (std::size_t i = 0; i < 2000; i++) {
        held.push_back(allocate(1 + i * 4099 % 300000, stream));
        if (held.size() > 20) held.erase(held.begin() + static_cast<long>(i % 20));
    }
    *fine = true;
}

int main() {
    bool fine[4] = {};
    std::vector<std::thread> threads;
    for (std::uintptr_t i = 0; i < 4; i++) threads.emplace_back(work, i, &fine[i]);
    for (auto &thread : threads) thread.join();
    bool all = fine[0] && fine[1] && fine[2] && fine[3];
    try {
        all = all && gapless_mem_alloc(std::size_t{1} << 45, 0, nullptr) == nullptr;
        all = all && gapless_mem_last_code() == GAPLESS_OUT_OF_MEMORY;
    } catch (...) {
        std::puts("gapless_mem_alloc threw");
        return 1;
    }
    gapless_mem_stats_t stats;
    gapless_mem_stats(0, &stats, sizeof stats);
    all = all && stats.allocated == 0 && stats.allocations_total == 4 * 2000;
    std::puts(all ? "passed" : "failed");
    return all ? 0 : 1;
}
