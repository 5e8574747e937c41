/* cuFFT: plans are numbers, and the work area of a plan follows rules from 69 plans on an H200, up to a million points:
 *
 *   complex, one dimension    none up to 16,384 points, a copy of the data above; a length with a prime factor above
 *                             4,096 is padded to four times the next power of two
 *   real, one dimension       none up to 4,096 points, and for powers of two up to 16,384; above half a copy; if the
 *                             length has a prime factor above 127 a whole complex copy, with one above 4,096 as above
 *   real, more dimensions     a whole complex copy if the last length has a prime factor above 127, a copy of the
 *                             output if another length is above 4,096, none else
 *   complex, more dimensions  none up to 4,096 points each; above it was not measured, and a copy is assumed */

#include "answers.h"
#include "notes.h"

enum { MULTIPLE_LENGTH = 4096, LONGEST = 16384, LARGEST_FACTOR = 127, LARGEST_PRIME = 4096 };

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
static int is_complex(int type) { return type >= 4 && type <= 6; }

static int64_t next_power(int64_t length) {
    int64_t power = 1;
    while (power < length) power *= 2;
    return power;
}

/* Points of complex data that one transform of one dimension needs beside its input and output. */
static int64_t along(int64_t length, int complex_only) {
    int64_t factor = largest_factor(length);
    int is_power = next_power(length) == length;
    if (factor > LARGEST_PRIME && length > LARGEST_PRIME) return complex_only ? 4 * next_power(length) : 2 * next_power(length) + length / 2 + 1;
    if (complex_only) return length > LONGEST ? length : 0;
    if (factor > LARGEST_FACTOR) return length;
    return length <= MULTIPLE_LENGTH || (is_power && length <= LONGEST) ? 0 : length / 2 + (length > 2 * LONGEST);
}

int cufftXtMakePlanMany(int plan, int rank, int64_t *lengths, int64_t *input_extent, int64_t input_stride, int64_t input_distance,
                        int input_type, int64_t *output_extent, int64_t output_stride, int64_t output_distance, int output_type,
                        int64_t batch, size_t *work, int execution_type) {
    (void)plan; (void)input_extent; (void)input_stride; (void)input_distance; (void)output_extent; (void)output_stride;
    (void)output_distance; (void)execution_type;
    int complex_only = is_complex(input_type) && is_complex(output_type), is_long = 0;
    int64_t points = batch, needed = 0;
    for (int i = 0; i < rank; i++) {
        points *= lengths[i];
        if (lengths[i] > MULTIPLE_LENGTH) is_long = 1;
    }
    int64_t last = lengths[rank - 1];
    if (rank == 1) needed = batch * along(last, complex_only);
    else if (complex_only) needed = is_long ? points : 0;
    else needed = largest_factor(last) > LARGEST_FACTOR ? points : is_long ? points / last * (last / 2 + 1) : 0;
    *work = (size_t)(needed * complex_size(input_type));
    card_note(rank > 1 && is_long ? ASSUMED : BY_RULE, __func__, *work);
    return 0;
}

DOES_NOTHING(cufftDestroy) DOES_NOTHING(cufftSetAutoAllocation) DOES_NOTHING(cufftSetStream) DOES_NOTHING(cufftSetWorkArea)
DOES_NOTHING(cufftXtExec)
