/* A linear layer on a CPU: out = x W^T + bias in float32, with W in panels. Lesson 13.

       W [N, K]     panel 0: columns 0 to COLUMNS - 1 of the result     panel 1     ...
                    k = 0: one weight of each column, k = 1: ..., so that a panel is read from front to back

   A step of decodes has some tens of rows: each panel is read from memory once and used for all of them. A thread
   multiplies a tile of rows with a panel, its sums in registers, and asks meanwhile for its share of the next panel.
   So memory and arithmetic take their time side by side, which a library's product does one after the other when no
   weight is in a cache, as in a model of more weights than the cache holds.

   A sum is added up in the order of k, whatever the number of rows: a row's result does not depend on the rows around
   it.

   Gated, as in an MLP: the first half of a panel's columns is of one weight, the gate, and the second half of another of
   the same shape. The result is silu(gate) * other, which never leaves the registers before. */

#include <stdint.h>
#include <string.h>

#include "exponential.h"

#if defined(__AVX512F__)
#define LANES 16 /* floats of a register: 32 registers hold the sums, a line of the panel and an element of x */
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8 /* 16 registers */
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define WIDE 2
#define COLUMNS (LANES * WIDE)
#define LINE 16    /* floats of a cache line */
#define STRETCH 16 /* elements of k between two requests for the next panel */

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

const int64_t columns = COLUMNS;

/* x / (1 + e^-x) * other, in the place of x */
static inline void gate(float *x, const float *other) {
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        const float power = fabsf(x[i]) < 87 ? exponential(-fabsf(x[i])) : 0;
        x[i] = x[i] * (x[i] < 0 ? power : 1) / (1 + power) * other[i];
    }
}

/* ``rows`` is a constant where this is expanded, so that all sums are in registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const float *x, int64_t depth, const float *panel,
                                                       const float *bias, float *out, int64_t width, int used,
                                                       const float *next, int64_t lines, int gated) {
    Lanes sums[ROWS][WIDE];
    int64_t asked = 0, k = 0;
    const int64_t share = (lines * STRETCH + depth - 1) / depth;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < WIDE; v++) sums[r][v] = *(const Lanes *)(bias + v * LANES);
    for (; k + STRETCH <= depth; k += STRETCH) {
        for (int64_t end = asked + share < lines ? asked + share : lines; asked < end; asked++)
            __builtin_prefetch(next + asked * LINE, 0, 2);
        for (int64_t i = k; i < k + STRETCH; i++)
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < WIDE; v++)
                    sums[r][v] += x[r * depth + i] * *(const Lanes *)(panel + i * COLUMNS + v * LANES);
    }
    for (; k < depth; k++)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < WIDE; v++)
                sums[r][v] += x[r * depth + k] * *(const Lanes *)(panel + k * COLUMNS + v * LANES);
    if (gated)
        for (int r = 0; r < rows; r++) gate((float *)sums[r], (float *)(sums[r] + 1));
    if (used == COLUMNS)
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < WIDE; v++) *(Lanes *)(out + r * width + v * LANES) = sums[r][v];
    else
        for (int r = 0; r < rows; r++) memcpy(out + r * width, sums[r], used * sizeof(float));
}

/* ``x`` [rows, depth]; ``panels`` [count][depth][COLUMNS], each with ``each`` columns of the result: COLUMNS, or half of
   them gated; ``bias`` [width] or NULL; ``out`` [rows, width]. */
void linear(const float *x, const float *panels, const float *bias, float *out, int64_t rows, int64_t width,
            int64_t depth, int64_t gated) {
    const int64_t each = gated ? COLUMNS / 2 : COLUMNS, count = (width + each - 1) / each, tiles = (rows + ROWS - 1) / ROWS;
    if (rows == 0) return;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < count; p++) {
        const int64_t first = p * each;
        const int used = width - first < each ? width - first : each;
        const float *panel = panels + p * depth * COLUMNS;
        const int64_t lines = p + 1 < count ? depth * COLUMNS / LINE : 0, share = (lines + tiles - 1) / tiles;
        float own[COLUMNS] = {0};
        if (bias) memcpy(own, bias + first, used * sizeof(float));
        for (int64_t t = 0, row = 0; t < tiles; t++) {
            const int height = (rows - row + tiles - t - 1) / (tiles - t);
            const int64_t from = t * share, asks = lines - from < share ? lines - from : share;
            const float *above = x + row * depth, *next = panel + depth * COLUMNS + from * LINE;
            float *below = out + row * width + first;
#define OF(N) \
    case N: \
        tile(N, above, depth, panel, own, below, width, used, next, asks, gated); \
        break;
            switch (height) {
                OF(1) OF(2) OF(3) OF(4) OF(5) OF(6)
#if ROWS > 6
                OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#endif
            }
            row += height;
        }
    }
}
