/* cuFFT: plans are numbers, and the work area of a plan follows a rule. On an H200 a transform whose lengths have no
 * prime factor above 127 needed none, up to 4,096 points; a prime length needed a copy of the complex data. Longer ones
 * were not measured: they are taken to need a copy as well. */

#include "answers.h"
#include "notes.h"

enum { MEASURED_LENGTH = 4096, LARGEST_FACTOR = 127 };

static int plans;

static int64_t largest_factor(int64_t length) {
    int64_t largest = 1;
    for (int64_t factor = 2; factor * factor <= length; factor++) {
        while (length % factor == 0) {
            largest = factor;
            length /= factor;
        }
    }
    return length > largest ? length : largest;
}

int cufftCreate(int *plan) { *plan = __atomic_add_fetch(&plans, 1, __ATOMIC_RELAXED); return 0; }

/* cudaDataType: complex numbers of double precision are 5, real ones 1; half precision is 2 and 6. */
static int64_t complex_size(int type) { return type == 1 || type == 5 ? 16 : type == 2 || type == 6 ? 4 : 8; }

int cufftXtMakePlanMany(int plan, int rank, int64_t *lengths, int64_t *input_extent, int64_t input_stride, int64_t input_distance,
                        int input_type, int64_t *output_extent, int64_t output_stride, int64_t output_distance, int output_type,
                        int64_t batch, size_t *work, int execution_type) {
    (void)plan; (void)input_extent; (void)input_stride; (void)input_distance; (void)output_extent; (void)output_stride;
    (void)output_distance; (void)output_type; (void)execution_type;
    int64_t points = batch;
    int hard = 0, measured = 1;
    for (int i = 0; i < rank; i++) {
        points *= lengths[i];
        if (largest_factor(lengths[i]) > LARGEST_FACTOR) hard = 1;
        if (lengths[i] > MEASURED_LENGTH) measured = 0;
    }
    *work = (hard && rank == 1) || !measured ? (size_t)(points * complex_size(input_type)) : 0;
    card_note(measured ? BY_RULE : ASSUMED, __func__, *work);
    return 0;
}

DOES_NOTHING(cufftDestroy) DOES_NOTHING(cufftSetAutoAllocation) DOES_NOTHING(cufftSetStream) DOES_NOTHING(cufftSetWorkArea)
DOES_NOTHING(cufftXtExec)
