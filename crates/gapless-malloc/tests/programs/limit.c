// Takes memory until there is no more, alone or with a forked child that holds some. Prints how many MiB it got.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

static int take(size_t each) {
  static void *slots[1 << 20];
  int count = 0;
  while (count < 1 << 20 && (slots[count] = malloc(each))) {
    memset(slots[count], 1, each < 4096 ? each : 4096);
    count++;
  }
  int reason = errno;
  int got = (int)((size_t)count * each / MiB);
  while (count) free(slots[--count]);
  if (reason != ENOMEM) printf("errno %d\n", reason);
  return got;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  setvbuf(stdout, NULL, _IONBF, 0);
  if (!strcmp(what, "large")) {
    printf("%d\n", take(4 * MiB));
    printf("%d\n", take(4 * MiB));
  } else if (!strcmp(what, "small")) {
    printf("%d\n", take(1000));
  } else if (!strcmp(what, "cached")) {
    // What is kept for reuse goes back first: after 200 MiB in one piece come 200 MiB that do not fit into it.
    free(malloc(200 * MiB));
    void *a = malloc(96 * MiB), *b = malloc(105 * MiB);
    printf("%d\n", a && b);
  } else if (!strcmp(what, "forked")) {
    int pipes[2];
    if (pipe(pipes)) return 1;
    pid_t child = fork();
    if (child == 0) {
      void *held = malloc(100 * MiB);
      if (!held) return 1;
      if (write(pipes[1], "x", 1) != 1) return 1;
      pause();
    }
    char byte;
    if (read(pipes[0], &byte, 1) != 1) return 1;
    printf("%d\n", take(4 * MiB));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("%d\n", take(4 * MiB));
  }
  return 0;
}
