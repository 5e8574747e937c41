// C++'s operators: sized, aligned, without exceptions, and what happens without memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

static int handled = 0;

struct alignas(256) Wide {
  char bytes[512];
};

static void fail(int line) {
  std::printf("line %d\n", line);
  std::exit(1);
}
#define CHECK(what) \
  if (!(what)) fail(__LINE__)

struct AtExit {
  std::vector<std::string> *kept = new std::vector<std::string>(100, std::string(1000, 'x'));
  ~AtExit() {
    delete kept;
    delete[] new char[3 << 20];
  }
} at_exit;

int main() {
  volatile std::size_t huge = SIZE_MAX / 2;
  for (int i = 0; i < 1000; i++) {
    auto *wide = new Wide[3];
    CHECK(reinterpret_cast<std::uintptr_t>(wide) % 256 == 0);
    delete[] wide;
    auto one = std::make_unique<Wide>();
    CHECK(reinterpret_cast<std::uintptr_t>(one.get()) % 256 == 0);
  }
  bool thrown = false;
  try {
    char *p = new char[huge];
    std::printf("%p\n", static_cast<void *>(p));
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  CHECK(thrown);
  thrown = false;
  try {
    void *p = ::operator new(huge, std::align_val_t(512));
    std::printf("%p\n", p);
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(new (std::nothrow) char[huge] == nullptr);
  std::set_new_handler([] {
    if (++handled == 3) std::set_new_handler(nullptr);
  });
  CHECK(new (std::nothrow) char[huge] == nullptr);
  CHECK(handled == 3);
  // A handler that throws: each operator passes it on, or catches it.
  std::set_new_handler([] {
    handled++;
    throw std::bad_alloc();
  });
  CHECK(new (std::nothrow) char[huge] == nullptr);
  CHECK(::operator new(huge, std::nothrow) == nullptr);
  CHECK(::operator new(huge, std::align_val_t(512), std::nothrow) == nullptr);
  CHECK(::operator new[](huge, std::align_val_t(512), std::nothrow) == nullptr);
  CHECK(handled == 7);
  thrown = false;
  try {
    ::operator delete(::operator new(huge));
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  CHECK(thrown && handled == 8);
  std::set_new_handler(nullptr);
  ::operator delete(::operator new(100), std::size_t(100));
  ::operator delete(::operator new(5 << 20), std::size_t(5 << 20));
  std::puts("ok");
}
