// One mistake a run, for the checked mode.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) char *maker(size_t size) { return malloc(size); }
__attribute__((noinline)) void first_release(char *p) { free(p); }
__attribute__((noinline)) void second_release(char *p) { free(p); }

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  size_t size = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
  char *p = maker(size);
  if (!strcmp(what, "double")) {
    first_release(p);
    second_release(p);
  } else if (!strcmp(what, "inside")) {
    first_release(p + 16);
  } else if (!strcmp(what, "unaligned")) {
    memset(p, 0, size);
    first_release(p + 8);
  } else if (!strcmp(what, "growing")) {
    // No other block may come to its place before the mistake is found.
    first_release(p);
    p = realloc(p, size * 4);
  } else if (!strcmp(what, "growing-inside")) {
    p = realloc(p + 16, size * 4);
  } else if (!strcmp(what, "foreign")) {
    char *here[8];
    first_release((char *)here);
  } else if (!strcmp(what, "behind")) {
    p[size] = 1;
    first_release(p);
  } else if (!strcmp(what, "before")) {
    p[-1] = 1;
    first_release(p);
  } else if (!strcmp(what, "left")) {
    p[size + 3] = 1;
  } else if (!strcmp(what, "after")) {
    first_release(p);
    p[5] = 1;
  } else if (!strcmp(what, "realloc")) {
    first_release(p);
    p = realloc(p, size * 2);
  } else if (!strcmp(what, "none")) {
    for (int i = 0; i < 2000; i++) {
      char *q = malloc((size_t)(i * 37) % 5000 + (i % 100 ? 0 : 1 << 20));
      q = realloc(q, (size_t)(i * 91) % 7000 + 1);
      free(q);
    }
    first_release(p);
  }
  puts("end");
  return 0;
}
