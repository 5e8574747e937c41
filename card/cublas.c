/* cuBLAS: torch gives it its workspace from its own allocator, so every product and solve does nothing to memory here.
 * The list is what libtorch_cuda.so and libtorch_cuda_linalg.so of torch 2.11 and 2.15 link to. */

#include "answers.h"

HANDLES(cublasCreate_v2, cublasDestroy_v2)
int cublasGetMathMode(void *handle, int *out) { (void)handle; *out = 0; return 0; }
int cublasGetPointerMode_v2(void *handle, int *out) { (void)handle; *out = 0; return 0; }
int cublasGetVersion_v2(void *handle, int *out) { (void)handle; *out = 130100; return 0; }


/* Batched factorisations say on the host whether an argument was bad, through argument number `at`; none is. */
#define BATCHED(name, at)                                                                                                   \
    int name(uintptr_t a1, uintptr_t a2, uintptr_t a3, uintptr_t a4, uintptr_t a5, uintptr_t a6, uintptr_t a7, uintptr_t a8,    \
             uintptr_t a9, uintptr_t a10) {                                                                                  \
        const uintptr_t given[] = {0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10};                                              \
        *(int *)given[at] = 0;                                                                                              \
        return 0;                                                                                                           \
    }
BATCHED(cublasSgeqrfBatched, 7) BATCHED(cublasDgeqrfBatched, 7) BATCHED(cublasCgeqrfBatched, 7) BATCHED(cublasZgeqrfBatched, 7)
BATCHED(cublasSgelsBatched, 10) BATCHED(cublasDgelsBatched, 10) BATCHED(cublasCgelsBatched, 10) BATCHED(cublasZgelsBatched, 10)
BATCHED(cublasSgetrsBatched, 10) BATCHED(cublasDgetrsBatched, 10) BATCHED(cublasCgetrsBatched, 10) BATCHED(cublasZgetrsBatched, 10)

DOES_NOTHING(cublasCaxpy_v2) DOES_NOTHING(cublasCcopy_v2) DOES_NOTHING(cublasCdotc_v2) DOES_NOTHING(cublasCdotu_v2)
DOES_NOTHING(cublasCgemmBatched) DOES_NOTHING(cublasCgemmStridedBatched) DOES_NOTHING(cublasCgemm_v2)
DOES_NOTHING(cublasCgemv_v2) DOES_NOTHING(cublasCgerc_v2) DOES_NOTHING(cublasCgeru_v2)
DOES_NOTHING(cublasCgetrfBatched) DOES_NOTHING(cublasChemm_v2) DOES_NOTHING(cublasChemv_v2)
DOES_NOTHING(cublasCher2_v2) DOES_NOTHING(cublasCher2k_v2) DOES_NOTHING(cublasCher_v2) DOES_NOTHING(cublasCherk_v2)
DOES_NOTHING(cublasCrot_v2) DOES_NOTHING(cublasCrotg_v2) DOES_NOTHING(cublasCscal_v2) DOES_NOTHING(cublasCsrot_v2)
DOES_NOTHING(cublasCsscal_v2) DOES_NOTHING(cublasCswap_v2) DOES_NOTHING(cublasCsymm_v2) DOES_NOTHING(cublasCsymv_v2)
DOES_NOTHING(cublasCsyr2_v2) DOES_NOTHING(cublasCsyr2k_v2) DOES_NOTHING(cublasCsyr_v2) DOES_NOTHING(cublasCsyrk_v2)
DOES_NOTHING(cublasCtrmm_v2) DOES_NOTHING(cublasCtrmv_v2) DOES_NOTHING(cublasCtrsmBatched)
DOES_NOTHING(cublasCtrsm_v2) DOES_NOTHING(cublasCtrsv_v2) DOES_NOTHING(cublasDasum_v2) DOES_NOTHING(cublasDaxpy_v2)
DOES_NOTHING(cublasDcopy_v2) DOES_NOTHING(cublasDdot_v2) DOES_NOTHING(cublasDgemmBatched)
DOES_NOTHING(cublasDgemmStridedBatched) DOES_NOTHING(cublasDgemm_v2) DOES_NOTHING(cublasDgemv_v2)
DOES_NOTHING(cublasDger_v2) DOES_NOTHING(cublasDgetrfBatched) DOES_NOTHING(cublasDnrm2_v2) DOES_NOTHING(cublasDotEx)
DOES_NOTHING(cublasDrot_v2) DOES_NOTHING(cublasDrotg_v2) DOES_NOTHING(cublasDrotm_v2) DOES_NOTHING(cublasDrotmg_v2)
DOES_NOTHING(cublasDscal_v2) DOES_NOTHING(cublasDswap_v2) DOES_NOTHING(cublasDsymm_v2) DOES_NOTHING(cublasDsymv_v2)
DOES_NOTHING(cublasDsyr2_v2) DOES_NOTHING(cublasDsyr2k_v2) DOES_NOTHING(cublasDsyr_v2) DOES_NOTHING(cublasDsyrk_v2)
DOES_NOTHING(cublasDtrmm_v2) DOES_NOTHING(cublasDtrmv_v2) DOES_NOTHING(cublasDtrsmBatched)
DOES_NOTHING(cublasDtrsm_v2) DOES_NOTHING(cublasDtrsv_v2) DOES_NOTHING(cublasDzasum_v2) DOES_NOTHING(cublasDznrm2_v2)
DOES_NOTHING(cublasGemmEx) DOES_NOTHING(cublasGemmStridedBatchedEx) DOES_NOTHING(cublasGetMatrixAsync)
DOES_NOTHING(cublasGetVectorAsync) DOES_NOTHING(cublasIcamax_v2) DOES_NOTHING(cublasIcamin_v2)
DOES_NOTHING(cublasIdamax_v2) DOES_NOTHING(cublasIdamin_v2) DOES_NOTHING(cublasIsamax_v2)
DOES_NOTHING(cublasIsamin_v2) DOES_NOTHING(cublasIzamax_v2) DOES_NOTHING(cublasIzamin_v2) DOES_NOTHING(cublasSasum_v2)
DOES_NOTHING(cublasSaxpy_v2) DOES_NOTHING(cublasScasum_v2) DOES_NOTHING(cublasScnrm2_v2) DOES_NOTHING(cublasScopy_v2)
DOES_NOTHING(cublasSdot_v2) DOES_NOTHING(cublasSetMathMode) DOES_NOTHING(cublasSetMatrixAsync)
DOES_NOTHING(cublasSetPointerMode_v2) DOES_NOTHING(cublasSetSmCountTarget) DOES_NOTHING(cublasSetStream_v2)
DOES_NOTHING(cublasSetVectorAsync)
DOES_NOTHING(cublasSetWorkspace_v2) DOES_NOTHING(cublasSgemmBatched) DOES_NOTHING(cublasSgemmEx)
DOES_NOTHING(cublasSgemmStridedBatched) DOES_NOTHING(cublasSgemm_v2) DOES_NOTHING(cublasSgemv_v2)
DOES_NOTHING(cublasSger_v2) DOES_NOTHING(cublasSgetrfBatched) DOES_NOTHING(cublasSnrm2_v2) DOES_NOTHING(cublasSrot_v2)
DOES_NOTHING(cublasSrotg_v2) DOES_NOTHING(cublasSrotm_v2) DOES_NOTHING(cublasSrotmg_v2) DOES_NOTHING(cublasSscal_v2)
DOES_NOTHING(cublasSswap_v2) DOES_NOTHING(cublasSsymm_v2) DOES_NOTHING(cublasSsymv_v2) DOES_NOTHING(cublasSsyr2_v2)
DOES_NOTHING(cublasSsyr2k_v2) DOES_NOTHING(cublasSsyr_v2) DOES_NOTHING(cublasSsyrk_v2) DOES_NOTHING(cublasStrmm_v2)
DOES_NOTHING(cublasStrmv_v2) DOES_NOTHING(cublasStrsmBatched) DOES_NOTHING(cublasStrsm_v2)
DOES_NOTHING(cublasStrsv_v2) DOES_NOTHING(cublasZaxpy_v2) DOES_NOTHING(cublasZcopy_v2) DOES_NOTHING(cublasZdotc_v2)
DOES_NOTHING(cublasZdotu_v2) DOES_NOTHING(cublasZdrot_v2) DOES_NOTHING(cublasZdscal_v2)
DOES_NOTHING(cublasZgemmBatched) DOES_NOTHING(cublasZgemmStridedBatched) DOES_NOTHING(cublasZgemm_v2)
DOES_NOTHING(cublasZgemv_v2) DOES_NOTHING(cublasZgerc_v2) DOES_NOTHING(cublasZgeru_v2)
DOES_NOTHING(cublasZgetrfBatched) DOES_NOTHING(cublasZhemm_v2) DOES_NOTHING(cublasZhemv_v2)
DOES_NOTHING(cublasZher2_v2) DOES_NOTHING(cublasZher2k_v2) DOES_NOTHING(cublasZher_v2) DOES_NOTHING(cublasZherk_v2)
DOES_NOTHING(cublasZrot_v2) DOES_NOTHING(cublasZrotg_v2) DOES_NOTHING(cublasZscal_v2) DOES_NOTHING(cublasZswap_v2)
DOES_NOTHING(cublasZsymm_v2) DOES_NOTHING(cublasZsymv_v2) DOES_NOTHING(cublasZsyr2_v2) DOES_NOTHING(cublasZsyr2k_v2)
DOES_NOTHING(cublasZsyr_v2) DOES_NOTHING(cublasZsyrk_v2) DOES_NOTHING(cublasZtrmm_v2) DOES_NOTHING(cublasZtrmv_v2)
DOES_NOTHING(cublasZtrsmBatched) DOES_NOTHING(cublasZtrsm_v2) DOES_NOTHING(cublasZtrsv_v2)
