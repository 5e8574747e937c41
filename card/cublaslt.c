/* cuBLASLt: descriptors are numbers, and the heuristics always offer one algorithm without a workspace: torch allocates
 * the workspace before it asks, by its own rule. */

#include "answers.h"
#include <string.h>

/* cublasLtMatmulHeuristicResult_t: an algorithm of 64 bytes, its workspace, status, waves, reserved. */
enum { RESULT_SIZE = 96, ALGORITHM_SIZE = 64 };
enum { INVALID_VALUE = 7 };

size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtMatmulDescCreate(void **out, int compute, int scale) { (void)compute; (void)scale; *out = calloc(1, 64); return 0; }
int cublasLtMatmulDescDestroy(void *descriptor) { free(descriptor); return 0; }
HANDLES(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy)
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    (void)type; (void)rows; (void)columns; (void)leading;
    *out = calloc(1, 64);
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *layout) { free(layout); return 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most,
                                   void *results, int *found) {
    (void)handle; (void)operation; (void)a; (void)b; (void)c; (void)d; (void)preference;
    *found = most > 0;
    if (most > 0) memset(results, 0, RESULT_SIZE);
    return 0;
}

/* An algorithm that the program puts together itself. Its 64 bytes are ours: a word for each attribute by its number,
 * from its name (0) to the shape of its clusters (8), of two or four bytes. */
int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int name, uint32_t *algorithm) {
    (void)handle; (void)compute; (void)scale; (void)a; (void)b; (void)c; (void)d;
    memset(algorithm, 0, ALGORITHM_SIZE);
    algorithm[0] = (uint32_t)name;
    return 0;
}
static int is_attribute(unsigned attribute, size_t size) { return attribute < ALGORITHM_SIZE / sizeof(uint32_t) && size <= sizeof(uint32_t); }
int cublasLtMatmulAlgoConfigSetAttribute(uint32_t *algorithm, unsigned attribute, const void *from, size_t size) {
    if (!is_attribute(attribute, size)) return INVALID_VALUE;
    memcpy(&algorithm[attribute], from, size);
    return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const uint32_t *algorithm, unsigned attribute, void *to, size_t size, size_t *written) {
    if (written) *written = size;
    if (!is_attribute(attribute, size)) return INVALID_VALUE;
    memcpy(to, &algorithm[attribute], size);
    return 0;
}
/* Every algorithm fits, without a workspace, like that of the heuristics. The result's own algorithm stays as it is. */
int cublasLtMatmulAlgoCheck(void *handle, void *operation, void *a, void *b, void *c, void *d, const void *algorithm, char *result) {
    (void)handle; (void)operation; (void)a; (void)b; (void)c; (void)d; (void)algorithm;
    memset(result + ALGORITHM_SIZE, 0, RESULT_SIZE - ALGORITHM_SIZE);
    return 0;
}

DOES_NOTHING(cublasLtMatmul)
DOES_NOTHING(cublasLtMatmulDescSetAttribute)
DOES_NOTHING(cublasLtMatmulPreferenceSetAttribute)
DOES_NOTHING(cublasLtMatrixLayoutSetAttribute)
HANDLES(cublasLtCreate, cublasLtDestroy)
