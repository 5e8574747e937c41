/* The list behind graph_objects.h, under one lock. The functions that drop objects are called outside of it, at once:
 * CUDA calls them later, from a thread of its own. */

#include "graph_objects.h"
#include "answers.h"
#include <pthread.h>

enum { INVALID_VALUE = 1, MOVE = 1 };

typedef struct { void *object; void (*drop)(void *object); unsigned references; } owned;
typedef struct holding { const void *graph; int executable; owned *what; unsigned count; struct holding *next; } holding;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static holding *holdings;

static void hold(const void *graph, int executable, owned *what, unsigned count) {
    holding *made = malloc(sizeof *made);
    if (!made) device_unexpected("no host memory");
    *made = (holding){graph, executable, what, count, holdings};
    holdings = made;
}

static void release(owned *what, unsigned count) {
    pthread_mutex_lock(&lock);
    if (count > what->references) device_unexpected("a user object was released more often than it was retained");
    int last = (what->references -= count) == 0;
    pthread_mutex_unlock(&lock);
    if (!last) return;
    what->drop(what->object);
    free(what);
}

/* Takes one holding off the list, NULL if none is left: of the graph if `executable` is 0, else of that one. */
static holding *take(const void *graph, int executable) {
    pthread_mutex_lock(&lock);
    holding **link = &holdings;
    while (*link && ((*link)->graph != graph || (*link)->executable != executable)) link = &(*link)->next;
    holding *found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

static void drop_all(const void *graph, int executable) {
    for (holding *found; (found = take(graph, executable)); free(found)) release(found->what, found->count);
}

/* Executables of one graph have numbers from 1 on; they share the graph's address, so that the latest goes first. */
static int latest_executable(const void *graph) {
    int latest = 0;
    for (const holding *at = holdings; at; at = at->next) {
        if (at->graph == graph && at->executable > latest) latest = at->executable;
    }
    return latest;
}

void objects_of_executable(const void *graph) {
    pthread_mutex_lock(&lock);
    int number = latest_executable(graph) + 1;
    for (holding *at = holdings, *next; at; at = next) {
        next = at->next;
        if (at->graph != graph || at->executable) continue;
        at->what->references += at->count;
        hold(graph, number, at->what, at->count);
    }
    pthread_mutex_unlock(&lock);
}

void objects_drop_executable(const void *graph) {
    pthread_mutex_lock(&lock);
    int number = latest_executable(graph);
    pthread_mutex_unlock(&lock);
    if (number) drop_all(graph, number);
}

void objects_drop_graph(const void *graph) { drop_all(graph, 0); }

int cudaUserObjectCreate(void **out, void *object, void (*drop)(void *object), unsigned references, unsigned flags) {
    (void)flags;
    owned *made = references ? malloc(sizeof *made) : NULL;
    if (!made) return INVALID_VALUE;
    *made = (owned){object, drop, references};
    *out = made;
    return 0;
}
int cudaUserObjectRelease(void *object, unsigned count) { release(object, count); return 0; }
int cudaGraphRetainUserObject(const void *graph, void *object, unsigned count, unsigned flags) {
    owned *what = object;
    pthread_mutex_lock(&lock);
    if (!(flags & MOVE)) what->references += count;
    hold(graph, 0, what, count);
    pthread_mutex_unlock(&lock);
    return 0;
}
