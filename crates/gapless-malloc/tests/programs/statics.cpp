// Objects that live as long as a thread or the program, and allocate when they end: in whatever order the C++ library
// destroys them, and while detached threads still run. Prints "ok" when the last of them is gone.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

struct Keeper {
  std::vector<std::string> words;
  std::unique_ptr<char[]> large;
  explicit Keeper(int count) : large(new char[3u << 20]) {
    for (int i = 0; i < count; i++) words.emplace_back(static_cast<size_t>(i % 3000 + 20), 'x');
    std::memset(large.get(), 1, 3u << 20);
  }
  ~Keeper() {
    std::vector<std::string> more;
    for (auto &word : words) more.push_back(word + word);
    words.clear();
    large.reset(new char[5u << 20]);
    std::memset(large.get(), 2, 5u << 20);
    for (auto &word : more)
      if (!word.empty() && word[0] != 'x') std::abort();
  }
};

struct Last {
  ~Last() {
    Keeper again(500);
    std::puts("ok");
    std::fflush(stdout);
  }
};

static Last last;
static Keeper first(1000);
static thread_local Keeper of_thread(300);

static void allocate_at_exit() { Keeper now(200); }

int main() {
  std::atexit(allocate_at_exit);
  std::at_quick_exit(allocate_at_exit);
  for (int i = 0; i < 20; i++) std::thread([] { of_thread.words.push_back("xmore"); }).join();
  for (int i = 0; i < 3; i++)
    std::thread([] {
      for (;;) {
        Keeper local(50);
        of_thread.words.resize(local.words.size());
      }
    }).detach();
  try {
    std::vector<char> impossible(static_cast<size_t>(-1) / 4);
    return 1;
  } catch (const std::bad_alloc &) {
  } catch (const std::length_error &) {
  }
  of_thread.words.push_back("x of main");
  usleep(50000);
  return 0;
}
