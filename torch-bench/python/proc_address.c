/* cuGetProcAddress, through which NVIDIA's Python bindings (and so Numba) take all of the driver's functions: those
 * that this library has, by name. */

#define _GNU_SOURCE
#include "card.h"
#include <dlfcn.h>
#include <stdio.h>

enum { NOT_FOUND = 500 };

/* Newer versions of a function first, as the driver does for a program that is built for the present CUDA. */
int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *result) {
    static const char *const endings[] = {"_v3", "_v2", ""};
    (void)version;
    (void)flags;
    *out = NULL;
    for (size_t at = 0; at < sizeof endings / sizeof *endings && !*out; at++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", symbol, endings[at]);
        Dl_info here;
        void *found = dlsym(RTLD_DEFAULT, name), *library = NULL;
        if (!found && dladdr((void *)cuGetProcAddress_v2, &here)) library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        if (library) {
            found = dlsym(library, name);
            dlclose(library);
        }
        *out = found;
    }
    if (result) *result = *out ? 0 : 1;
    return *out ? SUCCESS : NOT_FOUND;
}
