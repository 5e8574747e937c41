// Leaks 3,000 bytes a round, and frees as much; marks its steps; is killed in the middle where asked to.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *kept[4000];

__attribute__((noinline)) static char *leaks(int i) {
    return kept[i] = malloc(3000); // the leak
}

__attribute__((noinline)) static void comes_and_goes(void) {
    char *block = malloc(3000);
    memset(block, 1, 3000);
    free(block);
}

static void rounds(int from, int to, void (*step)(void)) {
    for (int i = from; i < to; i++) {
        if (step && i % 50 == 0) step();
        leaks(i)[0] = 1;
        comes_and_goes();
    }
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    void (*step)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "gapless_host_step");
    char *large = malloc(5 << 20);
    memset(large, 1, 5 << 20);
    rounds(0, 1000, step);
    if (!strcmp(how, "fork")) {
        pid_t child = fork();
        if (child == 0) {
            rounds(1000, 2000, step);
            printf("%d\n", getpid());
            return 0;
        }
        waitpid(child, NULL, 0);
    }
    large = realloc(large, 9 << 20);
    if (!strcmp(how, "killed")) kill(getpid(), SIGKILL);
    free(large);
    return 0;
}
