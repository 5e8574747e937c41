// Decodes chunks of bf16 values on a GPU: the cascade of crates/gapless-weights/src/codec/cascade.rs. One thread block
// decodes one chunk; grid = number of chunks, block = THREADS threads.
//
// The host has read the chunk's header and checked every place and length in it (`Chunk`). What is left to check is
// the chunk's checksum, and that each level passes on as many items as the header says. The kernel does both first and
// decodes nothing if they differ, so it never reads past a table.
//
// Levels run from the last to the first. The symbols of a level land in shared memory and are what the level above
// passes on. Level l writes table A if l is odd, else table B; the raw symbols count as a level. Only the first level
// writes to global memory.
//
// A warp works on rows of 256 items; a lane has 8 of them. Codes are spread to nibbles, so that one byte permutation
// looks up four palette entries, and another one puts the next symbols of the level below where the escapes are:
//
//   code nibbles   c7..c0                       prmt(palette, code)   four symbols, 0 where the code is the escape
//   escape nibbles m7..m0, each 0 or 1          m * 0x11111110        nibble i: how many escapes stand before item i
//                                               prmt(next, that)      the next symbols, at the place of each item
//
// tests/card/driver.cpp runs this file on a CPU.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROW 256

// As `Chunk` in ../cuda/chunk.rs.
struct Chunk {
    u64 source;       // address of the chunk
    u64 target;       // address of its first value, whether that is wanted or not
    u32 values;
    u32 first, last;  // the values that are wanted
    u32 levels;
    u32 bits[4];
    u32 escapes[4];   // items that each level passes on
    u32 places[5];    // where the planes of each level begin in the chunk, then the raw symbols
    u32 low;          // where the low bytes begin
    u64 palettes[4];  // symbols by code; 0 for the escape
    u64 checksum;     // XXH3 of the chunk
    u32 length;       // bytes of the chunk, more than 240; 0: the host has compared the checksum
    u32 unused;
};

// Bit k of a byte becomes nibble k.
__device__ __forceinline__ u32 spread(u32 x) {
    x &= 0xff;
    x = (x | x << 12) & 0x000f000f;
    x = (x | x << 6) & 0x03030303;
    return (x | x << 3) & 0x11111111;
}

// ---- XXH3 with 64 bits, of more than 240 bytes: crates/gapless-weights/src/checksum.rs ----
//
// Eight sums take words of 8 bytes, turn by turn. 16 stripes of 64 bytes are a block. What a block adds to the sums
// does not depend on them, so the warps add up blocks side by side. One warp then takes the blocks in order.

__device__ const u64 SECRET[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};
__device__ const u64 START[8] = {0x00000000c2b2ae3d, 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                                 0x85ebca77c2b2ae63, 0x0000000085ebca77, 0x27d4eb2f165667c5, 0x000000009e3779b1};
#define BLOCK 1024

// Eight bytes of the secret, from any place.
__device__ __forceinline__ u64 secret(u32 at) {
    const u32 turn = 8 * (at & 7);
    return turn ? SECRET[at >> 3] >> turn | SECRET[(at >> 3) + 1] << (64 - turn) : SECRET[at >> 3];
}

__device__ __forceinline__ u64 exchange(u64 x, int d) {
    const u32 low = __shfl_xor_sync(~0u, (u32)x, d), high = __shfl_xor_sync(~0u, (u32)(x >> 32), d);
    return (u64)high << 32 | low;
}

__device__ __forceinline__ u64 product(u64 keyed) { return (u64)(u32)keyed * (keyed >> 32); }

// Whether the chunk's checksum is right: the same for every thread of the first warp, true for the others. `sums` has
// room for the sums of `most` blocks. All threads of the block call it, and meet at its end.
__device__ bool is_right(const Chunk& chunk, u64* sums, u32 most, u32 lane, u32 warp) {
    const u64* words = (const u64*)chunk.source;
    const u32 blocks = (chunk.length - 1) / BLOCK, word = lane & 7;
    u64 keys[4];
    for (u32 k = 0; k < 4; k++) keys[k] = SECRET[4 * k + (lane >> 3) + word];
    u64 sum = START[word];
    for (u32 begin = 0; begin < blocks; begin += most) {
        const u32 count = blocks - begin < most ? blocks - begin : most;
        for (u32 b = warp; b < count; b += WARPS) {
            u64 data = 0, products = 0;
            for (u32 k = 0; k < 4; k++) {  // four stripes at a time, a word for each lane
                const u64 own = __ldg(words + (begin + b) * (BLOCK / 8) + 32 * k + lane);
                data += own;
                products += product(own ^ keys[k]);
            }
            products += exchange(data, 1);
            products += exchange(products, 8);
            products += exchange(products, 16);
            if (lane < 8) sums[8 * b + lane] = products;
        }
        __syncthreads();
        if (warp == 0)
            for (u32 b = 0; b < count; b++) {
                sum += sums[8 * b + word];
                sum = (sum ^ sum >> 47 ^ SECRET[16 + word]) * 0x9e3779b1u;
            }
        __syncthreads();
    }
    if (warp) return true;
    const u32 stripes = (chunk.length - 1 - blocks * BLOCK) / 64;
    for (u32 k = 0; k < stripes; k++) {
        const u64 own = __ldg(words + blocks * (BLOCK / 8) + 8 * k + word);
        sum += product(own ^ SECRET[k + word]) + exchange(own, 1);
    }
    // The last stripe ends where the chunk does.
    const u8* last = (const u8*)chunk.source + chunk.length - 64 + 8 * word;
    u64 own = 0;
    for (u32 k = 0; k < 8; k++) own |= (u64)last[k] << 8 * k;
    sum += product(own ^ secret(121 + 8 * word)) + exchange(own, 1);
    const u64 one = sum ^ secret(11 + 8 * word), other = exchange(one, 1);
    u64 folded = word & 1 ? 0 : one * other ^ __umul64hi(one, other);
    for (int d = 1; d < 8; d <<= 1) folded += exchange(folded, d);
    u64 result = chunk.length * 0x9e3779b185ebca87ull + folded;
    result = (result ^ result >> 37) * 0x165667919e3779f9ull;
    return (result ^ result >> 32) == chunk.checksum;
}

// ---- the cascade ----

// How many items a warp's share of a level passes on. A lane reads 32 items at a time.
template <u32 BITS>
__device__ u32 count(const u32* planes, u32 first, u32 last, u32 lane) {
    u32 sum = 0;
    for (u32 half = first + lane; half < last; half += 32) {
        const u32* at = planes + (half >> 1) * 2 * BITS + (half & 1);
        u32 escapes = ~0u;
        for (u32 b = 0; b < BITS; b++) escapes &= __ldg(at + 2 * b);
        sum += __popc(escapes);
    }
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    return sum;
}

// The rows of one warp. `at` is the first item of the level below that they take.
template <u32 BITS, bool FIRST>
__device__ void decode(const Chunk& chunk, const u32* planes, u32 blocks, u32 row, u32 last_row, u32 at, u64 palette,
                       const u8* from, u8* to, u32 lane) {
    const u32 low_palette = (u32)palette, high_palette = (u32)(palette >> 32);
    const u32 shift = 8 * (lane & 3), half = lane >> 2 & 1;
    const u8* low = (const u8*)(chunk.source + chunk.low);
    u16* values = (u16*)chunk.target;
    const bool is_aligned = (chunk.target & 15) == 0;
    for (; row < last_row; row++) {
        const u32 block = 4 * row + (lane >> 3), group = 32 * row + lane;
        const bool is_live = block < blocks;
        u32 plane[3] = {0, 0, 0}, escapes = is_live ? ~0u : 0;
        for (u32 b = 0; b < BITS; b++) {
            plane[b] = is_live ? __ldg(planes + block * 2 * BITS + 2 * b + half) : 0;
            escapes &= plane[b];
        }
        // Four lanes have the same 32 items: sum over the eight groups of lanes.
        const u32 own = __popc(escapes);
        u32 sum = own;
        for (u32 d = 4; d < 32; d <<= 1) {
            u32 below = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += below;
        }
        const u32 next = at + sum - own + __popc(escapes & ((1u << shift) - 1));
        at += __shfl_sync(~0u, sum, 31);
        u32 code = 0, escape = 0x11111111;
        for (u32 b = 0; b < BITS; b++) {
            u32 bits = spread(plane[b] >> shift);
            code += bits << b;
            escape &= bits;
        }
        if (!is_live) continue;
        const u32* words = (const u32*)from + (next >> 2);
        const u32 turn = 8 * (next & 3), a = words[0], b = words[1], c = words[2];
        const u32 w0 = __funnelshift_r(a, b, turn), w1 = __funnelshift_r(b, c, turn), pick = escape * 0x11111110u;
        const u32 e0 = __byte_perm(low_palette, high_palette, code)
                     | (__byte_perm(w0, w1, pick) & __byte_perm(0xff00, 0, escape));
        const u32 e1 = __byte_perm(low_palette, high_palette, code >> 16)
                     | (__byte_perm(w0, w1, pick >> 16) & __byte_perm(0xff00, 0, escape >> 16));
        if (!FIRST) {
            *(uint2*)(to + 8 * group) = make_uint2(e0, e1);
            continue;
        }
        const uint2 s = __ldg((const uint2*)(low + 8 * group));
        u32 v[4] = {__byte_perm(s.x, e0, 0x5140), __byte_perm(s.x, e0, 0x7362), __byte_perm(s.y, e1, 0x5140),
                    __byte_perm(s.y, e1, 0x7362)};
        for (int k = 0; k < 4; k++) v[k] = (v[k] >> 1 & 0x7fff7fff) | (v[k] << 15 & 0x80008000);
        if (is_aligned && 8 * group >= chunk.first && 8 * group + 8 <= chunk.last)
            *(uint4*)(values + 8 * group) = make_uint4(v[0], v[1], v[2], v[3]);
        else
            for (u32 k = 0; k < 8; k++)
                if (8 * group + k >= chunk.first && 8 * group + k < chunk.last)
                    values[8 * group + k] = (u16)(v[k >> 1] >> 16 * (k & 1));
    }
}

// `room` bytes of shared memory are table A, the rest table B; the sums of blocks stand in table A before. `error`, in
// the host's memory, becomes 1 + the number of a damaged chunk: any of them, if several are. Its highest bit says that
// the checksum is wrong.
extern "C" __global__ void __launch_bounds__(THREADS)
gapless_decode(const Chunk* chunks, u32 room, u32* error) {
    extern __shared__ __align__(16) u8 tables[];
    __shared__ u32 counts[4][WARPS];
    __shared__ u32 is_checked;
    const Chunk& chunk = chunks[blockIdx.x];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, levels = chunk.levels;
    const u8* source = (const u8*)chunk.source;
    const u8* raw = source + chunk.places[levels];
    u8* last_table = tables + (levels & 1 ? 0 : room);
    if (chunk.length) {
        const bool is_same = is_right(chunk, (u64*)tables, room / 64, lane, warp);
        if (threadIdx.x == 0) is_checked = is_same;
        __syncthreads();
        if (!is_checked) {                             // the same for every thread of the block
            if (threadIdx.x == 0) *error = (blockIdx.x + 1) | 1u << 31;
            return;
        }
    }
    for (u32 k = threadIdx.x; k < chunk.escapes[levels - 1]; k += THREADS) last_table[k] = raw[k];
    for (u32 l = 0; l < levels; l++) {
        const u32 items = l ? chunk.escapes[l - 1] : chunk.values, blocks = (items + 63) / 64;
        const u32 rows = (blocks + 3) / 4, first = rows * warp / WARPS * 8;
        u32 last = rows * (warp + 1) / WARPS * 8;
        if (last > 2 * blocks) last = 2 * blocks;
        const u32* planes = (const u32*)(source + chunk.places[l]);
        u32 sum;
        switch (chunk.bits[l]) {
        case 1: sum = count<1>(planes, first, last, lane); break;
        case 2: sum = count<2>(planes, first, last, lane); break;
        default: sum = count<3>(planes, first, last, lane);
        }
        if (lane == 0) counts[l][warp] = sum;
    }
    __syncthreads();
    bool is_whole = true;
    for (u32 l = 0; l < levels; l++) {
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) sum += counts[l][w];
        is_whole &= sum == chunk.escapes[l];
    }
    if (!is_whole) {                                   // the same for every thread of the block
        if (threadIdx.x == 0) *error = blockIdx.x + 1;
        return;
    }
    for (int l = (int)levels - 1; l >= 0; l--) {
        const u32 items = l ? chunk.escapes[l - 1] : chunk.values, blocks = (items + 63) / 64, rows = (blocks + 3) / 4;
        const u32 row = rows * warp / WARPS, last = rows * (warp + 1) / WARPS;
        u32 at = 0;
        for (u32 w = 0; w < warp; w++) at += counts[l][w];
        const u32* planes = (const u32*)(source + chunk.places[l]);
        const u8* from = tables + (l & 1 ? room : 0);
        u8* to = tables + (l & 1 ? 0 : room);
        const u64 palette = chunk.palettes[l];
        switch (chunk.bits[l] + (l ? 0 : 4)) {
        case 1: decode<1, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 2: decode<2, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 3: decode<3, false>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 5: decode<1, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        case 6: decode<2, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane); break;
        default: decode<3, true>(chunk, planes, blocks, row, last, at, palette, from, to, lane);
        }
        __syncthreads();
    }
}
