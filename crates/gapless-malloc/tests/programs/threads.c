// Threads that begin and end in ways that an allocator may not expect. Each case prints "ok".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static const size_t MiB = 1 << 20;

static int fails(const char *what) { return printf("%s: %s\n", what, strerror(errno)), 1; }

static long resident_kib(void) {
  char line[256];
  long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  if (f) fclose(f);
  return kib;
}

// Its thread is gone when others free this.
static void *leaves_blocks(void *argument) {
  void **blocks = argument;
  for (int i = 0; i < 64; i++) memset(blocks[i] = malloc((size_t)(i * i * 7 + 1)), i, (size_t)(i * i * 7 + 1));
  blocks[64] = memset(malloc(2 * MiB), 1, 2 * MiB);
  return NULL;
}

static int one_by_one(int count) {
  long before = 0;
  for (int round = 0; round < count; round++) {
    void *blocks[65];
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, leaves_blocks, blocks))) return fails("pthread_create");
    pthread_join(thread, NULL);
    for (int i = 0; i < 65; i++) {
      if (i && i < 64 && *(char *)blocks[i] != i) return printf("a block of a thread that ended changed\n"), 1;
      free(blocks[i]);
    }
    if (round == count / 4) before = resident_kib();
  }
  long grown = resident_kib() - before;
  return grown > 8 * 1024 ? (printf("%ld KiB more after the threads ended\n", grown), 1) : 0;
}

// The smallest stack that a thread may have.
static void *small_stack(void *argument) {
  for (int i = 0; i < 50; i++) {
    char *p = malloc((size_t)i * 4001), *z = calloc(1, (size_t)(i + 1) << 17), *a = NULL;
    if (!p || !z || posix_memalign((void **)&a, 1 << (i % 16 + 4), 3000)) return NULL;
    p = realloc(p, (size_t)(i + 1) << 18);
    if (!p) return NULL;
    p[0] = a[0] = z[0] = 1;
    free(p);
    free(z);
    free(a);
  }
  return argument;
}

static int small_stacks(void) {
  // Once, so that the loader has bound the functions that the thread calls.
  small_stack("x");
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    void *result = NULL;
    if ((errno = pthread_create(&thread, &attributes, small_stack, "x"))) return fails("pthread_create");
    pthread_join(thread, &result);
    if (!result) return printf("no memory on a small stack\n"), 1;
  }
  return 0;
}

// Destructors that allocate for each other, and for those that ran already.
static pthread_key_t keys[8];
static void destructor(void *value) {
  free(value);
  static __thread int rounds;
  if (rounds++ < 20) pthread_setspecific(keys[rounds % 8], malloc((size_t)rounds * 12345 % (2 * MiB)));
}

static void *with_keys(void *argument) {
  for (int i = 0; i < 8; i++) pthread_setspecific(keys[i], malloc((size_t)(i + 1) * 100000));
  if (argument) pthread_exit(argument);
  return NULL;
}

static int destructors(void) {
  for (int i = 0; i < 8; i++) pthread_key_create(&keys[i], destructor);
  for (int i = 0; i < 300; i++) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, with_keys, i % 2 ? "x" : NULL))) return fails("pthread_create");
    pthread_join(thread, NULL);
  }
  return 0;
}

static int libraries(const char *path) {
  for (int round = 0; round < 20; round++) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 1;
    char *(*make)(size_t) = (char *(*)(size_t))dlsym(library, "made_by_the_library");
    char *small = make(700), *large = make(3 * MiB);
    if (dlclose(library)) return printf("%s\n", dlerror()), 1;
    if (small[699] != 5 || large[3 * MiB - 1] != 5) return printf("a block went with its library\n"), 1;
    free(small);
    free(large);
  }
  return 0;
}

// Programs started in every way, while threads allocate.
static volatile int stop;
static void *allocates(void *argument) {
  for (unsigned i = 0; !stop; i++) free(malloc(i % 64 ? i % 7000 : 3 * MiB));
  return argument;
}

static int spawned(void) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, allocates, NULL);
  char *words[] = {"/bin/true", NULL};
  for (int round = 0; round < 30; round++) {
    pid_t pid;
    int status = 0;
    if ((errno = posix_spawn(&pid, "/bin/true", NULL, NULL, words, environ))) return fails("posix_spawn");
    if (waitpid(pid, &status, 0) != pid || status) return printf("posix_spawn: %x\n", status), 1;
    if ((pid = vfork()) == 0) {
      execve("/bin/true", words, environ);
      _exit(9);
    }
    if (waitpid(pid, &status, 0) != pid || status) return printf("vfork: %x\n", status), 1;
    if (system("true")) return printf("system\n"), 1;
    FILE *pipe = popen("echo hello", "r");
    char line[16] = "";
    if (!pipe || !fgets(line, 16, pipe) || pclose(pipe) || strcmp(line, "hello\n")) return printf("popen\n"), 1;
  }
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  return 0;
}

// Coroutines that begin in one thread and go on in another.
static ucontext_t outside, inside;
static void coroutine(void) {
  for (int i = 0; i < 200; i++) {
    char *p = malloc((size_t)i * 997 + 1), *q = malloc(MiB + (size_t)i * 4096);
    p[0] = q[0] = 1;
    swapcontext(&inside, &outside);
    free(p);
    free(q);
  }
  stop = 1;
}

static void *goes_on(void *argument) {
  swapcontext(&outside, &inside);
  return argument;
}

static int contexts(void) {
  static char stack[256 << 10];
  getcontext(&inside);
  inside.uc_stack.ss_sp = stack;
  inside.uc_stack.ss_size = sizeof stack;
  inside.uc_link = &outside;
  makecontext(&inside, coroutine, 0);
  while (!stop) {
    pthread_t thread;
    pthread_create(&thread, NULL, goes_on, NULL);
    pthread_join(thread, NULL);
  }
  return 0;
}

// A child that the bare system call made: no handlers ran, and only this thread exists.
static int child(void *how) {
  for (int i = 0; i < 3; i++) {
    char *p = malloc(5 * MiB);
    memset(p, 1, 5 * MiB);
    free(p);
    free(malloc(100 << i));
  }
  // These wait for a helper, if there is one.
  if (how && !strcmp(how, "forks")) {
    pid_t pid = fork();
    if (!pid) _exit(child(NULL));
    int status;
    return waitpid(pid, &status, 0) != pid || status;
  }
  if (how && !strcmp(how, "confines")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return 0;
}

static int cloned(void) {
  const int flags[] = {0, CLONE_FILES, CLONE_FS, CLONE_VM | CLONE_VFORK};
  char *hows[] = {NULL, "forks", "confines"};
  // Before the parent has a helper, and while it has one.
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 4 * 3; i++) {
      // A child that shares memory must not fork by the C library.
      if (i % 4 == 3 && i / 4) continue;
      char *stack = mmap(NULL, MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      pid_t pid = clone(child, stack + MiB, flags[i % 4] | SIGCHLD, hows[i / 4]);
      int status;
      if (waitpid(pid, &status, 0) != pid || status) return printf("clone %d: %x\n", i, status), 1;
      munmap(stack, MiB);
    }
    child(NULL);
  }
  return 0;
}

// The first thread ends, and the process with the last of the others.
static void *works_on(void *argument) {
  usleep(100 * 1000);
  allocates(argument);
  child(NULL);
  return argument;
}

static int first_ends(void) {
  child(NULL);
  pthread_t thread;
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, works_on, NULL);
  puts("ok");
  pthread_exit(NULL);
}

static void at_exit(void) {
  free(malloc(6 * MiB));
  void *p = realloc(calloc(3, 1000), 2 * MiB);
  free(p);
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  atexit(at_exit);
  alarm(100);
  int result = !strcmp(name, "one-by-one") ? one_by_one(argc > 2 ? atoi(argv[2]) : 10000)
             : !strcmp(name, "small-stacks") ? small_stacks()
             : !strcmp(name, "destructors") ? destructors()
             : !strcmp(name, "libraries") ? libraries(argv[2])
             : !strcmp(name, "spawned") ? spawned()
             : !strcmp(name, "contexts") ? contexts()
             : !strcmp(name, "cloned") ? cloned()
             : !strcmp(name, "first-ends") ? first_ends()
             : 2;
  if (!result) puts("ok");
  return result;
}
