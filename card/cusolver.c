/* cuSOLVER: solving does nothing; only the workspaces count, which torch asks for beforehand and allocates itself.
 * Eigenvalues of symmetric matrices, QR and singular values follow rules from an H200 (16 to 3,000 rows, float32). No
 * rule is known for the others: they are taken to need none, and that is noted. Cholesky and LU needed at most 63 kB.
 */

#include "answers.h"
#include "notes.h"

typedef uintptr_t word;

/* All arguments of these functions are integers and pointers, so that each can be named by its number. */
#define ARGUMENTS                                                                                                       \
    word a1, word a2, word a3, word a4, word a5, word a6, word a7, word a8, word a9, word a10, word a11, word a12,      \
    word a13, word a14, word a15, word a16, word a17, word a18, word a19, word a20
#define LIST {0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20}

/* A workspace in elements, through a pointer to an int that is argument number `at`. */
#define WORK_ELEMENTS(name, at)                 \
    int name(ARGUMENTS) {                       \
        const word given[] = LIST;              \
        *(int *)given[at] = 0;                  \
        card_note(ASSUMED, __func__, 0);        \
        return 0;                               \
    }
/* One on the card and one on the host, in bytes, through two pointers from argument number `at` on. */
#define WORK_BYTES(name, at)                    \
    int name(ARGUMENTS) {                       \
        const word given[] = LIST;              \
        *(size_t *)given[at] = 0;               \
        *(size_t *)given[at + 1] = 0;           \
        card_note(ASSUMED, __func__, 0);        \
        return 0;                               \
    }

HANDLES(cusolverDnCreate, cusolverDnDestroy)
HANDLES(cusolverDnCreateGesvdjInfo, cusolverDnDestroyGesvdjInfo)
HANDLES(cusolverDnCreateParams, cusolverDnDestroyParams)
HANDLES(cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo)

/* 86,800 bytes for 128 rows and 1,124,416 for 512, of four bytes an element, by Jacobi's method; the other method is
 * taken to need as much. Jacobi's functions have one argument more, which is not read. */
static int eigenvalues(int rows, int *out) {
    *out = rows * rows + (int)(35.53 * rows) + 768;
    card_note(BY_RULE, "cusolverDnSsyevj_bufferSize", (uint64_t)*out * 4);
    return 0;
}
#define EIGENVALUES(name)                                                                               \
    int name(void *handle, int job, int fill, int n, void *a, int leading, void *values, int *out) {    \
        (void)handle; (void)job; (void)fill; (void)a; (void)leading; (void)values;                      \
        return eigenvalues(n, out);                                                                     \
    }
EIGENVALUES(cusolverDnCheevd_bufferSize)
EIGENVALUES(cusolverDnDsyevd_bufferSize)
EIGENVALUES(cusolverDnSsyevd_bufferSize)
EIGENVALUES(cusolverDnZheevd_bufferSize)
EIGENVALUES(cusolverDnSsyevj_bufferSize)
EIGENVALUES(cusolverDnDsyevj_bufferSize)
EIGENVALUES(cusolverDnCheevj_bufferSize)
EIGENVALUES(cusolverDnZheevj_bufferSize)

/* Orthogonal factors of m rows and n columns: exact from 128 columns on, within 1 % below. In elements. */
#define ORTHOGONAL(name)                                                                                                \
    int name(void *handle, int m, int n, int k, void *a, int leading, void *tau, int *out) {                            \
        (void)handle; (void)k; (void)a; (void)leading; (void)tau;                                                       \
        *out = n >= 128 ? 128 * (m + 2 * n) + 16640 : 32768 + m * n + 256;                                              \
        card_note(BY_RULE, __func__, (uint64_t)*out * 4);                                                               \
        return 0;                                                                                                       \
    }
ORTHOGONAL(cusolverDnSorgqr_bufferSize) ORTHOGONAL(cusolverDnDorgqr_bufferSize)
ORTHOGONAL(cusolverDnCungqr_bufferSize) ORTHOGONAL(cusolverDnZungqr_bufferSize)

/* A product with orthogonal factors, for square matrices: within 0.1 %. In elements. */
#define ORTHOGONAL_PRODUCT(name)                                                                                        \
    int name(void *handle, int side, int transposed, int m, int n, int k, void *a, int leading, void *tau, void *c,     \
             int leading_c, int *out) {                                                                                 \
        (void)handle; (void)side; (void)transposed; (void)k; (void)a; (void)leading; (void)tau; (void)c;                \
        (void)leading_c;                                                                                                \
        *out = 2 * m * n + 769 * n + 65800;                                                                             \
        card_note(BY_RULE, __func__, (uint64_t)*out * 4);                                                               \
        return 0;                                                                                                       \
    }
ORTHOGONAL_PRODUCT(cusolverDnSormqr_bufferSize) ORTHOGONAL_PRODUCT(cusolverDnDormqr_bufferSize)

/* Singular values by Jacobi's method: square ones within 2 %, others have a QR before. In elements. */
#define SINGULAR_VALUES(name)                                                                                           \
    int name(void *handle, int job, int economy, int m, int n, void *a, int leading, void *s, void *u, int leading_u,   \
             void *v, int leading_v, int *out) {                                                                        \
        (void)handle; (void)job; (void)economy; (void)a; (void)leading; (void)s; (void)u; (void)leading_u; (void)v;     \
        (void)leading_v;                                                                                                \
        *out = m == n ? 2 * n * n + 71 * n + 800 : 786432 + m * n;                                                      \
        card_note(m == n ? BY_RULE : ASSUMED, __func__, (uint64_t)*out * 4);                                            \
        return 0;                                                                                                       \
    }
SINGULAR_VALUES(cusolverDnSgesvdj_bufferSize) SINGULAR_VALUES(cusolverDnDgesvdj_bufferSize)

/* By cudaDataType: the factor of a workspace, of which float32's is 1. */
static size_t times(int type) { return type == 5 ? 4 : type == 1 || type == 4 ? 2 : 1; }

/* A QR of n columns: exact in eight runs. */
int cusolverDnXgeqrf_bufferSize(void *handle, void *parameters, int64_t m, int64_t n, int type, void *a, int64_t leading, int tau_type,
                                void *tau, int compute_type, size_t *on_card, size_t *on_host) {
    (void)handle; (void)parameters; (void)m; (void)a; (void)leading; (void)tau_type; (void)tau; (void)compute_type;
    *on_card = (2097280 + 4096 * (size_t)(n < 256 ? 256 : n)) * times(type);
    *on_host = 0;
    card_note(BY_RULE, __func__, *on_card);
    return 0;
}

/* Eigenvalues of large symmetric matrices: exact to 100 bytes in three runs of 700, 1,000 and 3,000 rows. */
int cusolverDnXsyevd_bufferSize(void *handle, void *parameters, int job, int fill, int64_t n, int type, void *a, int64_t leading,
                                int values_type, void *values, int compute_type, size_t *on_card, size_t *on_host) {
    (void)handle; (void)parameters; (void)job; (void)fill; (void)a; (void)leading; (void)values_type; (void)values; (void)compute_type;
    *on_card = (size_t)(16 * n * n + 508 * n + 132012) * times(type);
    *on_host = 0;
    card_note(BY_RULE, __func__, *on_card);
    return 0;
}

WORK_ELEMENTS(cusolverDnCgeqrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnCgesvd_bufferSize, 4)
WORK_ELEMENTS(cusolverDnCgesvdaStridedBatched_bufferSize, 17) WORK_ELEMENTS(cusolverDnCgesvdjBatched_bufferSize, 12)
WORK_ELEMENTS(cusolverDnCgesvdj_bufferSize, 13) WORK_ELEMENTS(cusolverDnCgetrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnCheevjBatched_bufferSize, 8) WORK_ELEMENTS(cusolverDnCpotrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnCsytrf_bufferSize, 5) WORK_ELEMENTS(cusolverDnCunmqr_bufferSize, 12)
WORK_ELEMENTS(cusolverDnDgeqrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnDgesvd_bufferSize, 4)
WORK_ELEMENTS(cusolverDnDgesvdaStridedBatched_bufferSize, 17) WORK_ELEMENTS(cusolverDnDgesvdjBatched_bufferSize, 12)
WORK_ELEMENTS(cusolverDnDgetrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnDpotrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnDsyevjBatched_bufferSize, 8) WORK_ELEMENTS(cusolverDnDsytrf_bufferSize, 5)
WORK_ELEMENTS(cusolverDnSgeqrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnSgesvd_bufferSize, 4)
WORK_ELEMENTS(cusolverDnSgesvdaStridedBatched_bufferSize, 17) WORK_ELEMENTS(cusolverDnSgesvdjBatched_bufferSize, 12)
WORK_ELEMENTS(cusolverDnSgetrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnSpotrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnSsyevjBatched_bufferSize, 8) WORK_ELEMENTS(cusolverDnSsytrf_bufferSize, 5)
WORK_BYTES(cusolverDnXgeev_bufferSize, 18) WORK_BYTES(cusolverDnXpotrf_bufferSize, 9)
WORK_BYTES(cusolverDnXsyevBatched_bufferSize, 12) WORK_BYTES(cusolverDnXsytrs_bufferSize, 12)
WORK_ELEMENTS(cusolverDnZgeqrf_bufferSize, 6) WORK_ELEMENTS(cusolverDnZgesvd_bufferSize, 4)
WORK_ELEMENTS(cusolverDnZgesvdaStridedBatched_bufferSize, 17) WORK_ELEMENTS(cusolverDnZgesvdjBatched_bufferSize, 12)
WORK_ELEMENTS(cusolverDnZgesvdj_bufferSize, 13) WORK_ELEMENTS(cusolverDnZgetrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnZheevjBatched_bufferSize, 8) WORK_ELEMENTS(cusolverDnZpotrf_bufferSize, 6)
WORK_ELEMENTS(cusolverDnZsytrf_bufferSize, 5) WORK_ELEMENTS(cusolverDnZunmqr_bufferSize, 12)

DOES_NOTHING(cusolverDnCgeqrf) DOES_NOTHING(cusolverDnCgesvd) DOES_NOTHING(cusolverDnCgesvdaStridedBatched)
DOES_NOTHING(cusolverDnCgesvdj) DOES_NOTHING(cusolverDnCgesvdjBatched) DOES_NOTHING(cusolverDnCgetrf)
DOES_NOTHING(cusolverDnCgetrs) DOES_NOTHING(cusolverDnCheevd) DOES_NOTHING(cusolverDnCheevj)
DOES_NOTHING(cusolverDnCheevjBatched) DOES_NOTHING(cusolverDnCpotrf) DOES_NOTHING(cusolverDnCpotrfBatched)
DOES_NOTHING(cusolverDnCpotrs) DOES_NOTHING(cusolverDnCpotrsBatched) DOES_NOTHING(cusolverDnCsytrf)
DOES_NOTHING(cusolverDnCungqr) DOES_NOTHING(cusolverDnCunmqr) DOES_NOTHING(cusolverDnDgeqrf)
DOES_NOTHING(cusolverDnDgesvd) DOES_NOTHING(cusolverDnDgesvdaStridedBatched) DOES_NOTHING(cusolverDnDgesvdj)
DOES_NOTHING(cusolverDnDgesvdjBatched) DOES_NOTHING(cusolverDnDgetrf) DOES_NOTHING(cusolverDnDgetrs)
DOES_NOTHING(cusolverDnDorgqr) DOES_NOTHING(cusolverDnDormqr) DOES_NOTHING(cusolverDnDpotrf)
DOES_NOTHING(cusolverDnDpotrfBatched) DOES_NOTHING(cusolverDnDpotrs) DOES_NOTHING(cusolverDnDpotrsBatched)
DOES_NOTHING(cusolverDnDsyevd) DOES_NOTHING(cusolverDnDsyevj) DOES_NOTHING(cusolverDnDsyevjBatched)
DOES_NOTHING(cusolverDnDsytrf) DOES_NOTHING(cusolverDnSetStream) DOES_NOTHING(cusolverDnSgeqrf)
DOES_NOTHING(cusolverDnSgesvd) DOES_NOTHING(cusolverDnSgesvdaStridedBatched) DOES_NOTHING(cusolverDnSgesvdj)
DOES_NOTHING(cusolverDnSgesvdjBatched) DOES_NOTHING(cusolverDnSgetrf) DOES_NOTHING(cusolverDnSgetrs)
DOES_NOTHING(cusolverDnSorgqr) DOES_NOTHING(cusolverDnSormqr) DOES_NOTHING(cusolverDnSpotrf)
DOES_NOTHING(cusolverDnSpotrfBatched) DOES_NOTHING(cusolverDnSpotrs) DOES_NOTHING(cusolverDnSpotrsBatched)
DOES_NOTHING(cusolverDnSsyevd) DOES_NOTHING(cusolverDnSsyevj) DOES_NOTHING(cusolverDnSsyevjBatched)
DOES_NOTHING(cusolverDnSsytrf) DOES_NOTHING(cusolverDnXgeev) DOES_NOTHING(cusolverDnXgeqrf)
DOES_NOTHING(cusolverDnXgesvdjSetMaxSweeps) DOES_NOTHING(cusolverDnXgesvdjSetSortEig)
DOES_NOTHING(cusolverDnXgesvdjSetTolerance) DOES_NOTHING(cusolverDnXpotrf) DOES_NOTHING(cusolverDnXpotrs)
DOES_NOTHING(cusolverDnXsyevBatched) DOES_NOTHING(cusolverDnXsyevd) DOES_NOTHING(cusolverDnXsytrs)
DOES_NOTHING(cusolverDnZgeqrf) DOES_NOTHING(cusolverDnZgesvd) DOES_NOTHING(cusolverDnZgesvdaStridedBatched)
DOES_NOTHING(cusolverDnZgesvdj) DOES_NOTHING(cusolverDnZgesvdjBatched) DOES_NOTHING(cusolverDnZgetrf)
DOES_NOTHING(cusolverDnZgetrs) DOES_NOTHING(cusolverDnZheevd) DOES_NOTHING(cusolverDnZheevj)
DOES_NOTHING(cusolverDnZheevjBatched) DOES_NOTHING(cusolverDnZpotrf) DOES_NOTHING(cusolverDnZpotrfBatched)
DOES_NOTHING(cusolverDnZpotrs) DOES_NOTHING(cusolverDnZpotrsBatched) DOES_NOTHING(cusolverDnZsytrf)
DOES_NOTHING(cusolverDnZungqr) DOES_NOTHING(cusolverDnZunmqr)
