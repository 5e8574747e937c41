// Functions of the C library that are found elsewhere than in the program's own scope.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

typedef void *(*Make)(size_t);
typedef void (*Give)(void *);
typedef void *(*Again)(void *, size_t);
typedef size_t (*Usable)(void *);
typedef char *(*Copy)(const char *);
typedef int (*Enter)(int);

// What `ctypes.CDLL("libc.so.6")`, P/Invoke and Fiddle do.
static void by_handle(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);
    CHECK(libc);
    Make make = (Make)dlsym(libc, "malloc");
    Give give = (Give)dlsym(libc, "free");
    Again again = (Again)dlsym(libc, "realloc");
    Usable usable = (Usable)dlsym(libc, "malloc_usable_size");
    Copy copy = (Copy)dlsym(libc, "strdup");
    Give versioned = (Give)dlvsym(libc, "free", "GLIBC_2.2.5");
    for (size_t size = 1; size < 5 << 20; size = size * 3 + 1) {
        char *block = malloc(size);
        memset(block, 1, size);
        block = again(block, size * 2);
        CHECK(block && block[size - 1] == 1 && usable(block) >= size * 2);
        give(block);
        block = make(size);
        memset(block, 2, size);
        free(block);
        give(copy("a text that the C library allocates"));
        if (versioned)
            versioned(malloc(size));
    }
    // The kernel refuses this to a process with two threads.
    free(malloc(8 << 20));
    Enter enter = (Enter)dlsym(libc, "unshare");
    pid_t child = fork();
    if (child == 0) {
        free(malloc(8 << 20));
        int before = unshare(CLONE_NEWUSER);
        _exit(before == 0 ? 0 : 77);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        CHECK(enter(CLONE_NEWUSER) == 0);
}

// What PHP does with its extensions: the library looks into its own libraries first.
static void bound_deeply(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
    CHECK(library);
    char *(*make)(size_t) = (char *(*)(size_t))dlsym(library, "made_by_the_library");
    void (*give)(void *) = (void (*)(void *))dlsym(library, "freed_by_the_library");
    int (*start)(void) = (int (*)(void))dlsym(library, "threads_of_the_library");
    CHECK(make && give && start);
    for (size_t size = 1; size < 5 << 20; size = size * 3 + 1) {
        free(make(size));
        give(malloc(size));
        give(strdup("a text"));
    }
    CHECK(start() == 0);
}

// Thousands of threads: the C library frees what they leave behind while it holds the lock for new threads.
static pthread_barrier_t all;

static void *one(void *unused) {
    void *block = malloc(1000);
    pthread_barrier_wait(&all);
    free(block);
    return NULL;
}

static void many(int count) {
    pthread_t *threads = calloc(count, sizeof *threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    CHECK(pthread_barrier_init(&all, NULL, count + 1) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &attributes, one, NULL) == 0);
    pthread_barrier_wait(&all);
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    free(threads);
}

// A program that counts who asks the loader for names of addresses: it goes through all symbols each time.
static int asked;

int dladdr(const void *address, Dl_info *info) {
    asked++;
    memset(info, 0, sizeof *info);
    return 0;
}

static void unasked(void) {
    for (int i = 0; i < 1000; i++)
        free(malloc(i * 100));
    CHECK(asked == 0);
}

int main(int count, char **words) {
    alarm(100);
    if (!strcmp(words[1], "by-handle"))
        by_handle();
    else if (!strcmp(words[1], "bound-deeply"))
        bound_deeply(words[2]);
    else if (!strcmp(words[1], "many"))
        many(atoi(words[2]));
    else if (!strcmp(words[1], "unasked"))
        unasked();
    puts("ok");
    return 0;
}
