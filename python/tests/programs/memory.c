/* gapless.h from C, over the card of torch-bench/python: run by test_others.py. */

#include "gapless.h"
#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s: %d %s\n", __LINE__, #what, gapless_mem_last_code(), gapless_last_error()); \
            return 1; \
        } \
    } while (0)

/* Of the card: with 1, work goes on until device_sync. */
void card_hold(int hold);
void device_sync(void);

static gapless_mem_stats_t stats(void) {
    gapless_mem_stats_t now;
    if (gapless_mem_stats(0, &now, sizeof now) != GAPLESS_OK) memset(&now, 0xff, sizeof now);
    return now;
}

int main(void) {
    void *const stream = (void *)0x5000, *const other = (void *)0x6000;
    CHECK(gapless_mem_abi() == GAPLESS_ABI);
    CHECK(gapless_enable("slack=10") == 0);
    CHECK(gapless_enable("nonsense=1") == -1 && strstr(gapless_last_error(), "nonsense"));

    gapless_oom_folder("");

    /* A card that was not used has nothing. */
    CHECK(stats().reserved == 0 && stats().device_total == 0);

    void *a = gapless_mem_alloc(3 * MIB, 0, stream), *b = gapless_mem_alloc(1000, 0, stream);
    CHECK(a && b && a != b && gapless_mem_last_code() == GAPLESS_OK);
    CHECK((uintptr_t)a % 512 == 0 && (uintptr_t)b % 512 == 0);
    CHECK(stats().allocated == 3 * MIB + 1024 && stats().requested == 3 * MIB + 1000 && stats().allocations == 2);
    CHECK(stats().reserved >= stats().allocated && stats().device_total > stats().device_free);

    /* Memory that was freed on its stream can be had at once, on the same stream. */
    CHECK(gapless_mem_free(a) == GAPLESS_OK);
    CHECK(gapless_mem_alloc(3 * MIB, 0, stream) == a);

    /* Memory that was freed on another stream waits for the work there. */
    card_hold(1);
    CHECK(gapless_mem_free_on(a, other) == GAPLESS_OK);
    void *c = gapless_mem_alloc(3 * MIB, 0, stream);
    CHECK(c && c != a);
    CHECK(gapless_mem_record_stream(c, other) == GAPLESS_OK && gapless_mem_free(c) == GAPLESS_OK);
    void *d = gapless_mem_alloc(3 * MIB, 0, stream);
    CHECK(d && d != a && d != c);
    device_sync();
    card_hold(0);

    /* The legacy default stream: the memory waits for all streams that wait for it. */
    void *e = gapless_mem_alloc(5 * MIB, 0, NULL);
    card_hold(1);
    CHECK(gapless_mem_free_on(e, GAPLESS_STREAM_LEGACY) == GAPLESS_OK);
    void *f = gapless_mem_alloc(5 * MIB, 0, NULL);
    CHECK(f && f != e);
    device_sync();
    card_hold(0);

    /* Errors are codes and texts. */
    CHECK(gapless_mem_free(f) == GAPLESS_OK && gapless_mem_free(f) == GAPLESS_INVALID_ARGUMENT);
    CHECK(strstr(gapless_last_error(), "there is no allocation at 0x"));
    CHECK(gapless_mem_last_code() == GAPLESS_INVALID_ARGUMENT);
    CHECK(gapless_mem_record_stream(f, other) == GAPLESS_INVALID_ARGUMENT);
    CHECK(gapless_mem_free_on((void *)0x123456, other) == GAPLESS_INVALID_ARGUMENT);
    CHECK(gapless_mem_free(NULL) == GAPLESS_OK);
    CHECK(!gapless_mem_alloc(0, 0, stream) && gapless_mem_last_code() == GAPLESS_OK);
    CHECK(!gapless_mem_alloc(1, 0, (void *)2) && gapless_mem_last_code() == GAPLESS_INVALID_ARGUMENT);
    CHECK(!gapless_mem_alloc(1, 7, stream) && gapless_mem_last_code() == GAPLESS_UNAVAILABLE);
    CHECK(!gapless_mem_alloc(1, -1, stream) && gapless_mem_last_code() == GAPLESS_UNAVAILABLE);
    CHECK(!gapless_mem_alloc((size_t)1 << 45, 0, stream) && gapless_mem_last_code() == GAPLESS_OUT_OF_MEMORY);
    CHECK(strstr(gapless_last_error(), "out of memory") && stats().failures == 1);
    CHECK(gapless_mem_stats(0, NULL, 0) == GAPLESS_INVALID_ARGUMENT);

    /* A shorter structure, of an older header. */
    uint64_t two[3] = {0, 0, 77};
    CHECK(gapless_mem_stats(0, (gapless_mem_stats_t *)two, 2 * sizeof *two) == GAPLESS_OK);
    CHECK(two[0] == stats().allocated && two[2] == 77);

    /* Limits, peaks and what is given back. */
    CHECK(gapless_mem_free(b) == GAPLESS_OK && gapless_mem_free(d) == GAPLESS_OK);
    CHECK(stats().allocated == 0 && stats().allocated_peak > 0);
    gapless_mem_reset_peaks(0);
    CHECK(stats().allocated_peak == 0);
    CHECK(gapless_mem_trim(0) > 0 && stats().reserved == 0);
    CHECK(gapless_mem_set_limit(0, 32 * MIB) == GAPLESS_OK && stats().limit == 32 * MIB);
    CHECK(!gapless_mem_alloc(40 * MIB, 0, stream) && gapless_mem_last_code() == GAPLESS_OUT_OF_MEMORY);
    CHECK(gapless_mem_set_limit(0, 0) == GAPLESS_OK && stats().limit == 0);
    void *g = gapless_mem_alloc(40 * MIB, 0, stream);
    CHECK(g && gapless_mem_free(g) == GAPLESS_OK);
    puts("passed");
    return 0;
}
