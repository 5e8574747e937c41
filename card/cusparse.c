/* cuSPARSE: products of a sparse matrix with dense ones, and sorting. The workspaces were never measured: they are
 * taken to be empty, and that is noted. Products of two sparse matrices and triangular solves depend on the values.
 * They are not known. */

#include "answers.h"
#include "notes.h"

typedef uintptr_t word;

HANDLES(cusparseCreate, cusparseDestroy)
HANDLES(cusparseCreateMatDescr, cusparseDestroyMatDescr)
const char *cusparseGetErrorString(int error) { return error ? "error" : "no error"; }

/* A descriptor of a matrix or vector is an address that is never dereferenced. */
int cusparseCreateCsr(void **out) { *out = calloc(1, 64); return 0; }
int cusparseCreateCoo(void **out) { *out = calloc(1, 64); return 0; }
int cusparseCreateDnMat(void **out) { *out = calloc(1, 64); return 0; }
int cusparseCreateDnVec(void **out) { *out = calloc(1, 64); return 0; }
int cusparseDestroySpMat(void *descriptor) { free(descriptor); return 0; }
int cusparseDestroyDnMat(void *descriptor) { free(descriptor); return 0; }
int cusparseDestroyDnVec(void *descriptor) { free(descriptor); return 0; }

/* A workspace in bytes, through a pointer that is argument number `at`. */
#define WORK(name, at)                                                                                                          \
    int name(word a1, word a2, word a3, word a4, word a5, word a6, word a7, word a8, word a9, word a10, word a11) {            \
        const word given[] = {0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11};                                                 \
        *(size_t *)given[at] = 0;                                                                                               \
        card_note(ASSUMED, __func__, 0);                                                                                        \
        return 0;                                                                                                               \
    }
WORK(cusparseSpMM_bufferSize, 11)
WORK(cusparseSpMV_bufferSize, 10)
WORK(cusparseSDDMM_bufferSize, 11)
WORK(cusparseXcoosort_bufferSizeExt, 7)
WORK(cusparseXcsrsort_bufferSizeExt, 7)

DOES_NOTHING(cusparseCreateIdentityPermutation) DOES_NOTHING(cusparseCsrSetPointers)
DOES_NOTHING(cusparseCsrSetStridedBatch) DOES_NOTHING(cusparseDnMatSetStridedBatch) DOES_NOTHING(cusparseSDDMM)
DOES_NOTHING(cusparseSDDMM_preprocess) DOES_NOTHING(cusparseSetMatDiagType) DOES_NOTHING(cusparseSetMatFillMode)
DOES_NOTHING(cusparseSetMatIndexBase) DOES_NOTHING(cusparseSetMatType) DOES_NOTHING(cusparseSetPointerMode)
DOES_NOTHING(cusparseSetStream) DOES_NOTHING(cusparseSpMM) DOES_NOTHING(cusparseSpMV)
DOES_NOTHING(cusparseSpMatSetAttribute) DOES_NOTHING(cusparseXcoo2csr) DOES_NOTHING(cusparseXcoosortByRow)
DOES_NOTHING(cusparseXcsrsort)

NOT_KNOWN(cusparseCbsrmm) NOT_KNOWN(cusparseCbsrmv) NOT_KNOWN(cusparseCbsrsm2_analysis)
NOT_KNOWN(cusparseCbsrsm2_bufferSize) NOT_KNOWN(cusparseCbsrsm2_solve) NOT_KNOWN(cusparseCbsrsv2_analysis)
NOT_KNOWN(cusparseCbsrsv2_bufferSize) NOT_KNOWN(cusparseCbsrsv2_solve) NOT_KNOWN(cusparseCcsrgeam2)
NOT_KNOWN(cusparseCcsrgeam2_bufferSizeExt) NOT_KNOWN(cusparseCreateBsrsm2Info) NOT_KNOWN(cusparseCreateBsrsv2Info)
NOT_KNOWN(cusparseDbsrmm) NOT_KNOWN(cusparseDbsrmv) NOT_KNOWN(cusparseDbsrsm2_analysis)
NOT_KNOWN(cusparseDbsrsm2_bufferSize) NOT_KNOWN(cusparseDbsrsm2_solve) NOT_KNOWN(cusparseDbsrsv2_analysis)
NOT_KNOWN(cusparseDbsrsv2_bufferSize) NOT_KNOWN(cusparseDbsrsv2_solve) NOT_KNOWN(cusparseDcsrgeam2)
NOT_KNOWN(cusparseDcsrgeam2_bufferSizeExt) NOT_KNOWN(cusparseDestroyBsrsm2Info) NOT_KNOWN(cusparseDestroyBsrsv2Info)
NOT_KNOWN(cusparseSbsrmm) NOT_KNOWN(cusparseSbsrmv) NOT_KNOWN(cusparseSbsrsm2_analysis)
NOT_KNOWN(cusparseSbsrsm2_bufferSize) NOT_KNOWN(cusparseSbsrsm2_solve) NOT_KNOWN(cusparseSbsrsv2_analysis)
NOT_KNOWN(cusparseSbsrsv2_bufferSize) NOT_KNOWN(cusparseSbsrsv2_solve) NOT_KNOWN(cusparseScsrgeam2)
NOT_KNOWN(cusparseScsrgeam2_bufferSizeExt) NOT_KNOWN(cusparseSpGEMM_compute) NOT_KNOWN(cusparseSpGEMM_copy)
NOT_KNOWN(cusparseSpGEMM_createDescr) NOT_KNOWN(cusparseSpGEMM_destroyDescr) NOT_KNOWN(cusparseSpGEMM_workEstimation)
NOT_KNOWN(cusparseSpMatGetSize) NOT_KNOWN(cusparseSpSM_analysis) NOT_KNOWN(cusparseSpSM_bufferSize)
NOT_KNOWN(cusparseSpSM_createDescr) NOT_KNOWN(cusparseSpSM_destroyDescr) NOT_KNOWN(cusparseSpSM_solve)
NOT_KNOWN(cusparseSpSV_analysis) NOT_KNOWN(cusparseSpSV_bufferSize) NOT_KNOWN(cusparseSpSV_createDescr)
NOT_KNOWN(cusparseSpSV_destroyDescr) NOT_KNOWN(cusparseSpSV_solve) NOT_KNOWN(cusparseXbsrsm2_zeroPivot)
NOT_KNOWN(cusparseXbsrsv2_zeroPivot) NOT_KNOWN(cusparseXcsrgeam2Nnz) NOT_KNOWN(cusparseZbsrmm)
NOT_KNOWN(cusparseZbsrmv) NOT_KNOWN(cusparseZbsrsm2_analysis) NOT_KNOWN(cusparseZbsrsm2_bufferSize)
NOT_KNOWN(cusparseZbsrsm2_solve) NOT_KNOWN(cusparseZbsrsv2_analysis) NOT_KNOWN(cusparseZbsrsv2_bufferSize)
NOT_KNOWN(cusparseZbsrsv2_solve) NOT_KNOWN(cusparseZcsrgeam2) NOT_KNOWN(cusparseZcsrgeam2_bufferSizeExt)
