/* RMS norm of float32 rows on a CPU: out = x * weight / sqrt(mean(x^2) + eps), each row read from memory once. */

#include <math.h>
#include <stdint.h>

#define MANY 65536 /* elements: below, a second thread starts later than the first one ends */

void rms_norm(const float *x, const float *weight, float *out, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width >= MANY)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * width;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += row[i] * row[i];
        const float scale = 1 / sqrtf(squares / width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[r * width + i] = row[i] * scale * weight[i];
    }
}
