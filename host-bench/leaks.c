// Programs that leak, and programs that do not: one a run. A line that leaks has its program's name in a comment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 400

static void nothing(void) {}
static void (*step)(void) = nothing;
static uint64_t seed = 88172645463325252u;

static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

// What a step does besides: blocks that come and go.
static volatile uint64_t sum;
__attribute__((noinline)) static void work(int round) {
    char *blocks[64];
    for (int i = 0; i < 64; i++) {
        size_t size = 64 + next() % 6000;
        blocks[i] = malloc(size);
        memset(blocks[i], round, size);
    }
    for (int i = 0; i < 64; i++) {
        sum += (unsigned char)blocks[i][3];
        free(blocks[i]);
    }
    for (int i = 0; i < 100000; i++) sum += next() & 1;
}

struct node {
    struct node *next;
    char payload[2000];
};
static struct node *head;
static char *table[100000];
static int used;

// ---- leaks ----

static void forgotten(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        char *line = malloc(3000); // LEAK forgotten
        snprintf(line, 3000, "round %d", i);
        sum += strlen(line);
    }
}

static int parse(int i) {
    char *row = malloc(12000); // LEAK errorpath
    memset(row, i, 12000);
    if (i % 5 == 0) return -1; // the caller forgets the row
    free(row);
    return 0;
}
static void errorpath(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        sum += parse(i) < 0;
    }
}

static void list(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        struct node *node = malloc(sizeof *node); // LEAK list
        node->next = head;
        head = node;
    }
}

static void grows(void) {
    size_t room = 4096, length = 0;
    char *log = malloc(room);
    for (int i = 0; i < ROUNDS * 4; i++) {
        work(i);
        length += 8000;
        if (length > room) {
            room = length + length / 16;
            log = realloc(log, room); // LEAK grows
        }
        log[length - 1] = 1;
    }
    sum += log[1];
}

static void names(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        for (int j = 0; j < 20; j++) {
            char name[200];
            snprintf(name, sizeof name, "%0180d", i * j);
            table[used++] = strdup(name); // LEAK names
        }
    }
}

static void *serve(void *argument) {
    work((int)(intptr_t)argument);
    char *reply = malloc(5000); // LEAK served
    memset(reply, 1, 5000);
    return NULL;
}
static void served(void) {
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)i);
        pthread_join(thread, NULL);
    }
}

static void frames(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        if (i % 20 == 0) {
            char *frame = malloc(2 << 20); // LEAK frames
            memset(frame, 1, 2 << 20);
            table[used++] = frame;
        }
    }
}

__attribute__((noinline)) static char *make(int depth) {
    if (depth > 0) {
        char *made = make(depth - 1);
        made[depth] = 1;
        return made;
    }
    return calloc(1, 4000); // LEAK deep
}
static void deep(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        table[used++] = make(12);
    }
}

static void aligned(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        void *page;
        if (posix_memalign(&page, 4096, 4096) == 0) // LEAK aligned
            memset(page, 1, 4096);
    }
}

static void slow(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        for (int j = 0; j < 30; j++) table[used++] = malloc(64); // LEAK slow
    }
}

// ---- none of these leaks ----

static void churn(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
    }
}

static void arena(void) {
    for (int i = 0; i < 8; i++) table[i] = calloc(1, 1 << 20);
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        table[i % 8][i] = 1;
    }
}

static void freelist(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        struct node *taken[50];
        for (int j = 0; j < 50; j++) {
            taken[j] = head ? head : malloc(sizeof *head);
            if (head) head = head->next;
        }
        for (int j = 0; j < 50; j++) {
            taken[j]->next = head;
            head = taken[j];
        }
    }
}

static void fills(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        int key = (int)(next() % 64);
        if (!table[key]) table[key] = calloc(1, 8000);
    }
}

static void evicts(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        for (int j = 0; j < 10; j++) {
            int key = (int)(next() % 200);
            free(table[key]);
            table[key] = malloc(3000 + next() % 3000);
        }
    }
}

static void builds(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        char *text = NULL;
        size_t length = 0;
        for (int j = 0; j < 40; j++) {
            text = realloc(text, length += 700);
            text[length - 1] = 1;
        }
        free(text);
    }
}

static void *own(void *argument) {
    char *area = malloc(300000);
    memset(area, 1, 300000);
    work((int)(intptr_t)argument);
    free(area);
    return NULL;
}
static void workers(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        pthread_t thread;
        pthread_create(&thread, NULL, own, (void *)(intptr_t)i);
        pthread_join(thread, NULL);
    }
}

static void doubles(void) {
    size_t room = 64;
    char *all = malloc(room);
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        while (room < 1000000 && i > 2) all = realloc(all, room *= 2);
    }
    sum += all[1];
}

static void sawtooth(void) {
    for (int i = 0; i < ROUNDS; i++) {
        step();
        work(i);
        table[used++] = malloc(10000);
        if (used == 25)
            while (used > 0) free(table[--used]);
    }
}

static void large(void) {
    for (int i = 0; i < ROUNDS; i++) {
        work(i);
        if (i % 4 == 0) {
            free(table[i / 4 % 8]);
            table[i / 4 % 8] = calloc(1, (1 + next() % 3) << 20);
        }
    }
}

#define CASE(name) {#name, name}
static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    CASE(forgotten), CASE(errorpath), CASE(list), CASE(grows), CASE(names), CASE(served), CASE(frames), CASE(deep),
    CASE(aligned), CASE(slow), CASE(churn), CASE(arena), CASE(freelist), CASE(fills), CASE(evicts), CASE(builds),
    CASE(workers), CASE(doubles), CASE(sawtooth), CASE(large),
};

int main(int count, char **words) {
    void (*found)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "gapless_host_step");
    if (found) step = found;
    for (size_t i = 0; count > 1 && i < sizeof CASES / sizeof *CASES; i++)
        if (strcmp(words[1], CASES[i].name) == 0) {
            CASES[i].run();
            return 0;
        }
    fprintf(stderr, "unknown case\n");
    return 2;
}
