// The C++ heap of the driver and of the libraries in it, at an address that is the same in every run.
//
// c10 keeps frees that wait for the end of a capture in a hash table keyed by pointers of the host, and works them off
// in its order. With the system's heap that order changes from run to run, and with it peaks of statistics and, from
// 2.12 on, ranks of blocks. Here the pointers are a function of the program alone.
//
// c10 also keeps notes about uses of a block during a capture under the block's host pointer, and may forget to drop
// them when the block object dies: a new object at the same pointer then inherits them. Whether that happens is up to
// the heap, so here it never does: pieces of the size of a block object are not used again. One thread allocates;
// nothing is given back to the system.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

constexpr uintptr_t BASE = 0x200000000000;
constexpr size_t ROOM = size_t{64} << 30;
constexpr size_t CLASSES = 128;
// 32 bytes to 1 KiB: block objects of every version are in between.
constexpr size_t ONCE_FROM = 2, ONCE_TO = 64;

// In front of each block, which keeps blocks aligned to 16: its class while in use.
struct alignas(16) Head {
  size_t size_class;
};

struct Free {
  Free* next;
};

char* next = nullptr;
Free* free_blocks[CLASSES];

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "driver's heap: %s\n", what);
  std::_Exit(70);
}

// Multiples of 16 up to 1 KiB, powers of two above.
size_t class_of(size_t size) {
  if (size <= 1024) return size <= 16 ? 1 : (size + 15) / 16;
  return 64 + (64 - __builtin_clzll(size - 1)) - 10;
}

size_t class_size(size_t size_class) {
  return size_class <= 64 ? size_class * 16 : size_t{1} << (size_class - 64 + 10);
}

} // namespace

void* operator new(size_t size) {
  const size_t size_class = class_of(size);
  if (Free* block = free_blocks[size_class]) {
    free_blocks[size_class] = block->next;
    return block;
  }
  if (!next) {
    void* region = mmap(reinterpret_cast<void*>(BASE), ROOM, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (region != reinterpret_cast<void*>(BASE)) give_up("its addresses are taken");
    next = static_cast<char*>(region);
  }
  const size_t length = sizeof(Head) + class_size(size_class);
  if (length > BASE + ROOM - reinterpret_cast<uintptr_t>(next)) give_up("it is full");
  Head* head = reinterpret_cast<Head*>(next);
  next += length;
  head->size_class = size_class;
  return head + 1;
}

void operator delete(void* block) noexcept {
  if (!block) return;
  const size_t size_class = (static_cast<Head*>(block) - 1)->size_class;
  if (size_class >= ONCE_FROM && size_class <= ONCE_TO) return;
  Free* freed = static_cast<Free*>(block);
  freed->next = free_blocks[size_class];
  free_blocks[size_class] = freed;
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }
