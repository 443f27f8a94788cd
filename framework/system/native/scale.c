/* Cut, scale, turn and mirror uint8 images.

   Every result is a weighted sum of pixels, first of rows, then of columns, in whole numbers: weights
   have 14 bits behind the point, and what is between the two has 6. So AVX2 and plain C give the
   same bits.

   The weights are a triangle over the source pixels under each result, as in Pillow and torch
   (antialiased), or are those of the two nearest pixels on each axis (linear). An image that grows on
   both axes is linear in any case. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "scale.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_AVX2 1
#endif

enum { WEIGHT_BITS = 14, ROW_BITS = 6, CHUNK = 512, MOST_SHRUNK = 1000 };

/* For each result of an axis the first source pixel and pairs of weights, the last perhaps 0. */
typedef struct {
    int64_t pairs;
    int32_t *starts;  /* [results] */
    int16_t *weights; /* [results, pairs, 2] */
} Taps;

uint8_t *paceline_memory(Memory *memory, int64_t size)
{
    if (memory->size < size) {
        free(memory->bytes);
        memory->bytes = malloc((size_t)size + size / 2);
        memory->size = memory->bytes ? size + size / 2 : 0;
    }
    return memory->bytes;
}

static int64_t num_pairs(int64_t in, int64_t out, double support)
{
    int64_t most = in == out ? 1 : (int64_t)ceil(2 * support);
    return (most + 1) / 2;
}

/* Weigh the pixels below one result; return the first one. */
static int64_t weigh(double center, double support, int64_t in, int64_t pairs, int16_t *weights)
{
    int64_t first = (int64_t)floor(center - support + 0.5), stop = (int64_t)floor(center + support + 0.5);
    first = first < 0 ? 0 : first;
    stop = stop > in ? in : stop;
    stop = stop > first + 2 * pairs ? first + 2 * pairs : stop;
    double total = 0;
    for (int64_t x = first; x < stop; x++)
        total += fmax(0, 1 - fabs(x + 0.5 - center) / support);
    int64_t left = 1 << WEIGHT_BITS, largest = 0;
    for (int64_t x = first; x < stop; x++) {
        double share = fmax(0, 1 - fabs(x + 0.5 - center) / support) / total;
        int64_t weight = (int64_t)floor(share * (1 << WEIGHT_BITS) + 0.5);
        weights[x - first] = (int16_t)weight;
        left -= weight;
        if (weight > weights[largest])
            largest = x - first;
    }
    weights[largest] += (int16_t)left; /* the sum is 1 */
    return first;
}

/* Make the table of an axis, backwards if it is mirrored. */
static void make_taps(Taps *taps, int64_t in, int64_t out, double support, int mirrored)
{
    memset(taps->weights, 0, (size_t)(out * taps->pairs) * 2 * sizeof(int16_t));
    for (int64_t i = 0; i < out; i++) {
        int64_t place = mirrored ? out - 1 - i : i;
        int16_t *weights = taps->weights + place * taps->pairs * 2;
        if (in == out) {
            weights[0] = 1 << WEIGHT_BITS;
            taps->starts[place] = (int32_t)i;
        } else {
            double center = (i + 0.5) * in / out;
            taps->starts[place] = (int32_t)weigh(center, support, in, taps->pairs, weights);
        }
    }
}

/* Add up rows: out[i] = sum of weights[k] * rows[k][i]. */
static void sum_rows_from(int64_t begin, const uint8_t *const *rows, const int16_t *weights,
                          int64_t pairs, int64_t count, int16_t *out)
{
    int32_t sums[CHUNK];
    for (int64_t at = begin; at < count; at += CHUNK) {
        int64_t size = count - at < CHUNK ? count - at : CHUNK;
        for (int64_t i = 0; i < size; i++)
            sums[i] = 1 << (WEIGHT_BITS - ROW_BITS - 1);
        for (int64_t k = 0; k < 2 * pairs; k++)
            for (int64_t i = 0; i < size; i++)
                sums[i] += weights[k] * rows[k][at + i];
        for (int64_t i = 0; i < size; i++)
            out[at + i] = (int16_t)(sums[i] >> (WEIGHT_BITS - ROW_BITS));
    }
}

static uint8_t rounded(int32_t sum)
{
    return (uint8_t)((sum + (1 << (WEIGHT_BITS + ROW_BITS - 1))) >> (WEIGHT_BITS + ROW_BITS));
}

/* Add up columns of a row of pixels with ``stride`` channels: out[c] gets result x of channel c. */
static void sum_columns_from(int64_t begin, const int16_t *row, int64_t stride, const Taps *taps,
                             int64_t count, int64_t channels, uint8_t *const *out, int64_t step)
{
    for (int64_t x = begin; x < count; x++) {
        const int16_t *weights = taps->weights + x * taps->pairs * 2;
        const int16_t *first = row + stride * taps->starts[x];
        for (int64_t c = 0; c < channels; c++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < 2 * taps->pairs; k++)
                sum += weights[k] * (int32_t)first[stride * k + c];
            out[c][x * step] = rounded(sum);
        }
    }
}

#ifdef HAS_AVX2
#define AVX2 __attribute__((target("avx2")))
#define INLINE AVX2 __attribute__((always_inline)) static inline

INLINE int64_t sum_pairs_of_rows(const uint8_t *const *rows, const int16_t *weights, int64_t pairs,
                                  int64_t count, int16_t *out)
{
    const __m256i half = _mm256_set1_epi32(1 << (WEIGHT_BITS - ROW_BITS - 1));
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i low = half, high = half;
        for (int64_t k = 0; k < pairs; k++) {
            __m256i first = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(rows[2 * k] + i)));
            __m256i second =
                _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(rows[2 * k + 1] + i)));
            int32_t pair;
            memcpy(&pair, weights + 2 * k, sizeof pair);
            __m256i weight = _mm256_set1_epi32(pair);
            low = _mm256_add_epi32(
                low, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), weight));
            high = _mm256_add_epi32(
                high, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), weight));
        }
        low = _mm256_srai_epi32(low, WEIGHT_BITS - ROW_BITS);
        high = _mm256_srai_epi32(high, WEIGHT_BITS - ROW_BITS);
        _mm256_storeu_si256((void *)(out + i), _mm256_packs_epi32(low, high));
    }
    return i;
}

/* As sum_rows_from, but of whole vectors only. Return how many numbers that is. */
AVX2 static int64_t sum_rows_avx2(const uint8_t *const *rows, const int16_t *weights, int64_t pairs,
                                  int64_t count, int16_t *out)
{
    switch (pairs) { /* known numbers make faster loops */
    case 1:
        return sum_pairs_of_rows(rows, weights, 1, count, out);
    case 2:
        return sum_pairs_of_rows(rows, weights, 2, count, out);
    default:
        return sum_pairs_of_rows(rows, weights, pairs, count, out);
    }
}

/* Return the sums of the channels of result x. */
INLINE __m128i sum_pixel(const int16_t *row, int64_t stride, const Taps *taps, int64_t pairs, int64_t x,
                         __m128i order)
{
    const int16_t *weights = taps->weights + x * pairs * 2;
    const int16_t *first = row + stride * taps->starts[x];
    __m128i sum = _mm_set1_epi32(1 << (WEIGHT_BITS + ROW_BITS - 1));
    for (int64_t k = 0; k < pairs; k++) {
        __m128i two = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(first + 2 * k * stride)), order);
        int32_t pair;
        memcpy(&pair, weights + 2 * k, sizeof pair);
        sum = _mm_add_epi32(sum, _mm_madd_epi16(two, _mm_set1_epi32(pair)));
    }
    return _mm_srai_epi32(sum, WEIGHT_BITS + ROW_BITS);
}

INLINE int64_t sum_pairs_of_columns(const int16_t *row, int64_t stride, const Taps *taps, int64_t pairs,
                                    int64_t count, int64_t channels, uint8_t *const *out, int64_t step)
{
    /* two neighbors side by side: 0 s 1 s+1 2 s+2, in bytes */
    char places[16];
    for (int c = 0; c < 4; c++)
        for (int side = 0; side < 2; side++) {
            int64_t from = c < channels ? 2 * (c + side * stride) : 0x80;
            places[4 * c + 2 * side] = (char)from;
            places[4 * c + 2 * side + 1] = (char)(from | 1);
        }
    const __m128i order = _mm_loadu_si128((const void *)places);
    const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i by_pixel = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
    int64_t x = 0;
    for (; x + 4 <= count; x += 4) {
        __m128i first = _mm_packs_epi32(sum_pixel(row, stride, taps, pairs, x, order),
                                        sum_pixel(row, stride, taps, pairs, x + 1, order));
        __m128i second = _mm_packs_epi32(sum_pixel(row, stride, taps, pairs, x + 2, order),
                                         sum_pixel(row, stride, taps, pairs, x + 3, order));
        __m128i four = _mm_packus_epi16(first, second);
        int32_t bytes[4];
        _mm_storeu_si128((void *)bytes, _mm_shuffle_epi8(four, step == 3 ? by_pixel : by_channel));
        if (step == 3)
            memcpy(out[0] + 3 * x, bytes, 12);
        else
            for (int64_t c = 0; c < channels; c++)
                memcpy(out[c] + x, bytes + c, 4);
    }
    return x;
}

AVX2 static int64_t sum_columns_avx2(const int16_t *row, int64_t stride, const Taps *taps, int64_t count,
                                     int64_t channels, uint8_t *const *out, int64_t step)
{
    switch (taps->pairs) {
    case 1:
        return sum_pairs_of_columns(row, stride, taps, 1, count, channels, out, step);
    case 2:
        return sum_pairs_of_columns(row, stride, taps, 2, count, channels, out, step);
    default:
        return sum_pairs_of_columns(row, stride, taps, taps->pairs, count, channels, out, step);
    }
}

/* Put planes side by side: 4 numbers a pixel. */
AVX2 static int64_t interleave_avx2(const int16_t *in, int64_t to_channel, int64_t count, int16_t *out)
{
    int64_t i = 0;
    const __m128i none = _mm_setzero_si128();
    for (; i + 8 <= count; i += 8) {
        __m128i red = _mm_loadu_si128((const void *)(in + i));
        __m128i green = _mm_loadu_si128((const void *)(in + to_channel + i));
        __m128i blue = _mm_loadu_si128((const void *)(in + 2 * to_channel + i));
        __m128i low = _mm_unpacklo_epi16(red, green), high = _mm_unpackhi_epi16(red, green);
        __m128i low_blue = _mm_unpacklo_epi16(blue, none), high_blue = _mm_unpackhi_epi16(blue, none);
        _mm_storeu_si128((void *)(out + 4 * i), _mm_unpacklo_epi32(low, low_blue));
        _mm_storeu_si128((void *)(out + 4 * i + 8), _mm_unpackhi_epi32(low, low_blue));
        _mm_storeu_si128((void *)(out + 4 * i + 16), _mm_unpacklo_epi32(high, high_blue));
        _mm_storeu_si128((void *)(out + 4 * i + 24), _mm_unpackhi_epi32(high, high_blue));
    }
    return i;
}

static int has_avx2(const Scaling *scaling)
{
    return !scaling->portable && __builtin_cpu_supports("avx2");
}
#else
static int has_avx2(const Scaling *scaling)
{
    (void)scaling;
    return 0;
}
#endif

static void sum_rows(int fast, const uint8_t *const *rows, const int16_t *weights, int64_t pairs,
                     int64_t count, int16_t *out)
{
    int64_t done = 0;
#ifdef HAS_AVX2
    if (fast)
        done = sum_rows_avx2(rows, weights, pairs, count, out);
#endif
    (void)fast;
    sum_rows_from(done, rows, weights, pairs, count, out);
}

static void interleave(int fast, const int16_t *in, int64_t to_channel, int64_t count, int16_t *out)
{
    int64_t done = 0;
#ifdef HAS_AVX2
    if (fast)
        done = interleave_avx2(in, to_channel, count, out);
#endif
    (void)fast;
    for (int64_t i = done; i < count; i++)
        for (int64_t c = 0; c < 3; c++)
            out[4 * i + c] = in[c * to_channel + i];
}

static void sum_columns(int fast, const int16_t *row, int64_t stride, const Taps *taps, int64_t count,
                        int64_t channels, uint8_t *const *out, int64_t step)
{
    int64_t done = 0;
#ifdef HAS_AVX2
    if (fast)
        done = sum_columns_avx2(row, stride, taps, count, channels, out, step);
#endif
    (void)fast;
    sum_columns_from(done, row, stride, taps, count, channels, out, step);
}

/* Part the channels of a row, backwards if it is mirrored. */
FASTEST static void part(const uint8_t *in, int64_t count, int mirrored, uint8_t *red, uint8_t *green,
                         uint8_t *blue)
{
    if (mirrored)
        for (int64_t x = 0; x < count; x++) {
            red[count - 1 - x] = in[3 * x];
            green[count - 1 - x] = in[3 * x + 1];
            blue[count - 1 - x] = in[3 * x + 2];
        }
    else
        for (int64_t x = 0; x < count; x++) {
            red[x] = in[3 * x];
            green[x] = in[3 * x + 1];
            blue[x] = in[3 * x + 2];
        }
}

FASTEST static void reverse(const uint8_t *in, int64_t count, uint8_t *out)
{
    for (int64_t x = 0; x < count; x++)
        out[x] = in[count - 1 - x];
}

/* Copy a row of a window that is not scaled, backwards if it is mirrored. */
static void copy_row(const Window *window, int64_t y, int64_t channels, uint8_t *const *out,
                     int64_t step)
{
    const uint8_t *from = window->pixels + y * window->to_row;
    int64_t width = window->width, to_pixel = window->to_pixel;
    int mirrored = (int)(window->flip & MIRRORED);
    if (channels == 3 && to_pixel == 3 && step == 1) {
        part(from, width, mirrored, out[0], out[1], out[2]);
        return;
    }
    for (int64_t c = 0; c < channels; c++) {
        const uint8_t *in = from + c * window->to_channel;
        if (to_pixel == 1 && step == 1 && mirrored)
            reverse(in, width, out[c]);
        else if (to_pixel == 1 && step == 1)
            memcpy(out[c], in, (size_t)width);
        else
            for (int64_t x = 0; x < width; x++)
                out[c][x * step] = in[(mirrored ? width - 1 - x : x) * to_pixel];
    }
}

/* Take the pixel under the center of each result, so that no new values are made. */
static void nearest_row(const Window *window, int64_t y, int64_t channels, uint8_t *const *out,
                        int64_t step)
{
    const uint8_t *from =
        window->pixels + (2 * y + 1) * window->height / (2 * window->out_height) * window->to_row;
    for (int64_t x = 0; x < window->out_width; x++) {
        int64_t place = (2 * x + 1) * window->width / (2 * window->out_width);
        int64_t at = window->flip & MIRRORED ? window->out_width - 1 - x : x;
        for (int64_t c = 0; c < channels; c++)
            out[c][at * step] = from[place * window->to_pixel + c * window->to_channel];
    }
}

/* Exchange rows and columns: the window is interleaved in ``turned`` then. */
static void turn(Window *window, int64_t channels, uint8_t *turned)
{
    for (int64_t x = 0; x < window->width; x++)
        for (int64_t y = 0; y < window->height; y++)
            for (int64_t c = 0; c < channels; c++)
                turned[(x * window->height + y) * channels + c] =
                    window->pixels[y * window->to_row + x * window->to_pixel + c * window->to_channel];
    int64_t height = window->height;
    *window = (Window){turned, window->width, height, height * channels, channels, 1,
                       window->flip & ~TURNED, window->out, window->out_height, window->out_width};
}

/* Where results of row y of the image before it is turned upside down begin, by channel. */
static void out_row(const Window *window, const Scaling *scaling, int64_t y, uint8_t **out)
{
    int64_t row = window->flip & UPSIDE_DOWN ? window->out_height - 1 - y : y;
    int64_t first = row * window->out_width;
    for (int64_t c = 0; c < scaling->channels; c++)
        out[c] = window->out + (scaling->interleaved ? first * scaling->channels + c
                                    : c * window->out_height * window->out_width + first);
}

static int64_t aligned(int64_t size)
{
    return (size + 63) / 64 * 64;
}

/* Bytes behind a row that are read and weigh nothing. */
static int64_t slack_of(const Taps *across)
{
    return across->pairs * 2 * 4 * (int64_t)sizeof(int16_t) + 16;
}

static void filter(const Window *window, const Scaling *scaling, Taps *down, Taps *across,
                   uint8_t *scratch)
{
    int fast = has_avx2(scaling), planar = window->to_pixel == 1 && scaling->channels == 3;
    int64_t channels = scaling->channels, step = scaling->interleaved ? channels : 1;
    int64_t stride = planar ? 4 : channels, width = window->width;
    int64_t slack = slack_of(across), plane = aligned(width * 2 + slack) / 2;
    const uint8_t **rows = (const uint8_t **)scratch;
    scratch += aligned(down->pairs * 2 * (int64_t)sizeof *rows);
    int16_t *row = (int16_t *)scratch, *sums = planar ? row + 4 * plane : row;
    memset(row + stride * width, 0, (size_t)slack);
    uint8_t *out[3];
    for (int64_t y = 0; y < window->out_height; y++) {
        const int16_t *weights = down->weights + y * down->pairs * 2;
        for (int64_t c = 0; c < (planar ? 3 : 1); c++) {
            for (int64_t k = 0; k < 2 * down->pairs; k++) {
                int64_t at = down->starts[y] + k;
                at = at < window->height ? at : window->height - 1; /* its weight is 0 */
                rows[k] = window->pixels + at * window->to_row + c * window->to_channel;
            }
            sum_rows(fast, rows, weights, down->pairs, planar ? width : width * channels,
                     sums + c * plane);
        }
        if (planar)
            interleave(fast, sums, plane, width, row);
        out_row(window, scaling, y, out);
        sum_columns(fast, row, stride, across, window->out_width, channels, out, step);
    }
}

int paceline_scale_window(const Window *given, const Scaling *scaling, Memory *memory)
{
    Window window = *given;
    int64_t channels = scaling->channels;
    int64_t turned = window.flip & TURNED ? aligned(window.height * window.width * channels) : 0;
    int64_t height = turned ? window.width : window.height, width = turned ? window.height : window.width;
    int64_t out_height = window.out_height, out_width = window.out_width;
    int same = height == out_height && width == out_width;
    int grows = out_height >= height && out_width >= width;
    int antialiased = scaling->how == ANTIALIASED && !grows;
    double high = antialiased ? fmax(1, (double)height / out_height) : 1;
    double wide = antialiased ? fmax(1, (double)width / out_width) : 1;
    if (high > MOST_SHRUNK || wide > MOST_SHRUNK)
        return -1;
    Taps down = {num_pairs(height, out_height, high), NULL, NULL};
    Taps across = {num_pairs(width, out_width, wide), NULL, NULL};
    int64_t starts = aligned((out_height + out_width) * (int64_t)sizeof(int32_t));
    int64_t downs = aligned(out_height * down.pairs * 4), acrosses = aligned(out_width * across.pairs * 4);
    int64_t rows = aligned(down.pairs * 2 * (int64_t)sizeof(uint8_t *));
    int64_t size = turned;
    if (!same && scaling->how != NEAREST)
        size += starts + downs + acrosses + rows + 8 * aligned(width * 2 + slack_of(&across));
    uint8_t *scratch = paceline_memory(memory, size + 64);
    if (!scratch)
        return -1;
    scratch += 63 - ((uintptr_t)scratch + 63) % 64;
    if (turned)
        turn(&window, channels, scratch);
    scratch += turned;
    if (!same && scaling->how != NEAREST) {
        down.starts = (int32_t *)scratch;
        across.starts = down.starts + out_height;
        down.weights = (int16_t *)(scratch + starts);
        across.weights = (int16_t *)(scratch + starts + downs);
        make_taps(&down, height, out_height, high, 0);
        make_taps(&across, width, out_width, wide, (int)(window.flip & MIRRORED));
        filter(&window, scaling, &down, &across, scratch + starts + downs + acrosses);
        return 0;
    }
    uint8_t *out[3];
    for (int64_t y = 0; y < out_height; y++) {
        out_row(&window, scaling, y, out);
        (same ? copy_row : nearest_row)(&window, y, channels, out, scaling->interleaved ? channels : 1);
    }
    return 0;
}
