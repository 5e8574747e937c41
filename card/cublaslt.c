/* cuBLASLt: descriptors are numbers, and the heuristics always offer one algorithm without a workspace: torch allocates
 * the workspace before it asks, by its own rule. */

#include "answers.h"
#include <string.h>

/* cublasLtMatmulHeuristicResult_t: an algorithm of 64 bytes, its workspace, status, waves, reserved. */
enum { RESULT_SIZE = 96 };

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

DOES_NOTHING(cublasLtMatmul)
DOES_NOTHING(cublasLtMatmulDescSetAttribute)
DOES_NOTHING(cublasLtMatmulPreferenceSetAttribute)
DOES_NOTHING(cublasLtMatrixLayoutSetAttribute)
HANDLES(cublasLtCreate, cublasLtDestroy)
