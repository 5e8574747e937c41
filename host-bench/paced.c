// As paced.py, in C: `paced NAME SECONDS`. Compiled as a library too, for programs in Python whose extension leaks.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((noinline)) void *keep(size_t size) {
    return memset(malloc(size), 1, size); // LEAK extension extension_few
}
__attribute__((noinline)) void *take(size_t size) { return memset(malloc(size), 1, size); }
void drop(void *block) { free(block); }

static uint64_t seed = 1442695040888963407u;
static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

// What a round does besides: a tree that is built, walked and freed.
struct tree {
    struct tree *left, *right;
    uint64_t key;
};
static volatile uint64_t sum;
__attribute__((noinline)) static struct tree *insert(struct tree *at, uint64_t key) {
    if (!at) {
        at = calloc(1, sizeof *at);
        at->key = key;
    } else if (key < at->key) {
        at->left = insert(at->left, key);
    } else {
        at->right = insert(at->right, key);
    }
    return at;
}
static void destroy(struct tree *at) {
    if (!at) return;
    sum += at->key;
    destroy(at->left);
    destroy(at->right);
    free(at);
}
static void work(void) {
    struct tree *root = NULL;
    for (int i = 0; i < 300; i++) root = insert(root, next());
    char *text = malloc(2000 + next() % 3000);
    memset(text, 'x', 2000);
    sum += (unsigned char)text[7];
    destroy(root);
    free(text);
}

static double seconds, started, done;
static int round_number;
static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
// A round; false when the run is over.
static int goes_on(void) {
    if (started == 0) started = cpu();
    done = (cpu() - started) / seconds;
    if (done >= 1) return 0;
    work();
    round_number++;
    return 1;
}

static void *table[100000];
static int used;
static int total;

// ---- leaks ----

struct node {
    struct node *next;
    char text[92];
};
static struct node *head;
static void list(void) {
    while (goes_on())
        while (used < done * total) {
            struct node *made = malloc(sizeof *made); // LEAK list list_few
            made->next = head;
            head = made;
            used++;
        }
}
static void names(void) {
    while (goes_on())
        while (used < done * total) {
            char name[120];
            snprintf(name, sizeof name, "%0100d", used);
            table[used++] = strdup(name); // LEAK names names_few
        }
}
static void *serve(void *argument) {
    for (int i = 0; i < 10; i++) {
        char *made = malloc(100 + (size_t)i); // LEAK served served_few
        memset(made, 1, 100);
        table[used++] = made;
    }
    return argument;
}
static void served(void) {
    while (goes_on())
        while (used < done * total) {
            pthread_t thread;
            pthread_create(&thread, NULL, serve, NULL);
            pthread_join(thread, NULL);
        }
}

// ---- none of these leaks ----

static void replaced(void) {
    while (goes_on())
        for (int i = 0; i < 5; i++) {
            int key = (int)(next() % 2000);
            free(table[key]);
            table[key] = malloc(100 + next() % 100);
        }
}
static void ring(void) {
    while (goes_on())
        for (int i = 0; i < 3; i++) {
            free(table[used % 1500]);
            table[used++ % 1500] = malloc(200);
        }
}
static void *own(void *argument) {
    char *area = malloc(5000);
    memset(area, 1, 5000);
    free(area);
    return argument;
}
static void workers(void) {
    while (goes_on())
        if (round_number % 4 == 0) {
            pthread_t thread;
            pthread_create(&thread, NULL, own, NULL);
            pthread_join(thread, NULL);
        }
}
static void waves(void) {
    while (goes_on()) {
        table[used++] = malloc(300);
        if (used > 400)
            while (used > 0) free(table[--used]);
    }
}
static void filled(void) {
    while (goes_on())
        while (used < 2000 && used < done * 8 * 2000) table[used++] = malloc(150);
}

#define CASE(name, count) {#name, name, count}, {#name "_few", name, 300}
static const struct {
    const char *name;
    void (*run)(void);
    int total;
} CASES[] = {
    CASE(list, 3000), CASE(names, 3000), CASE(served, 3000), CASE(replaced, 0), CASE(ring, 0), CASE(workers, 0),
    CASE(waves, 0), CASE(filled, 0),
};

int main(int count, char **words) {
    seconds = count > 2 ? atof(words[2]) : 1;
    for (size_t i = 0; count > 1 && i < sizeof CASES / sizeof *CASES; i++)
        if (strcmp(words[1], CASES[i].name) == 0) {
            total = CASES[i].total;
            CASES[i].run();
            return 0;
        }
    fprintf(stderr, "unknown case\n");
    return 2;
}
