#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x for x <= 0, to 3 units in the last place: 2^n e^f with |f| <= ln 2 / 2. The one of libm is not vectorized. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = nearbyintf(x * 1.44269504f);
    float f = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float series = 1 + f * (1 + f * (0.5f + f * (1.0f / 6 + f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720))))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * series;
}
