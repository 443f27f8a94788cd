/* Change brightness, contrast, saturation and hue of RGB images [B, 3, H, W], in two passes over
   each image instead of about forty over the batch.

   framework/augment/color_jitter.py defines the numbers and the order of rounding with torch's
   operators. Compile with -ffp-contract=off. The code works on a piece of an image at a time, which
   stays in the first-level cache. Each step is a loop of its own, so that the compiler can
   vectorize it for eight pixels. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "batch.h"

#define PIECE 256
enum { BRIGHTNESS = 1, CONTRAST = 2, SATURATION = 4, HUE = 8 };

typedef struct {
    const void *image;
    int of_bytes;          /* whether the image is uint8, or else float32 in [0, 1] */
    int steps;             /* which of the four steps, as a sum */
    int64_t pixels;        /* of one channel */
    const float *factors;  /* [B, 4]: brightness, contrast, saturation; hue in sixths of a turn */
    float *out;
} Job;

typedef struct { float red[PIECE], green[PIECE], blue[PIECE]; } Piece;

static inline float clamped(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }
/* NaN becomes 0, because it has no integer. */
static inline float bounded(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }

FASTEST static void load(const Job *job, int64_t at, int64_t count, float *to)
{
    if (job->of_bytes) {
        const uint8_t *from = (const uint8_t *)job->image + at;
        for (int64_t i = 0; i < count; i++)
            to[i] = (float)from[i] * (float)(1.0 / 255.0);
    } else {
        const float *from = (const float *)job->image + at;
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i];
    }
}

/* Blend: factor of the image, and the rest of a number. */
FASTEST static void blend(float *x, int64_t count, float factor, float other)
{
    float rest = (1.0f - factor) * other;
    for (int64_t i = 0; i < count; i++)
        x[i] = clamped(x[i] * factor + rest);
}

static inline float gray(float red, float green, float blue)
{
    return red * 0.2989f + green * 0.587f + blue * 0.114f;
}

/* The sum in units of 1/65536: with integers the order of adding does not matter. */
FASTEST static int64_t sum_of_gray(const Piece *piece, int64_t count)
{
    int32_t total = 0;
    for (int64_t i = 0; i < count; i++)
        total += (int32_t)rintf(
            bounded(gray(piece->red[i], piece->green[i], piece->blue[i])) * 65536.0f);
    return total;
}

FASTEST static void saturate(Piece *piece, int64_t count, float factor)
{
    float rest = 1.0f - factor;
    for (int64_t i = 0; i < count; i++) {
        float other = rest * gray(piece->red[i], piece->green[i], piece->blue[i]);
        piece->red[i] = clamped(piece->red[i] * factor + other);
        piece->green[i] = clamped(piece->green[i] * factor + other);
        piece->blue[i] = clamped(piece->blue[i] * factor + other);
    }
}

/* One channel of a color. place: sixths of the color circle from the hue with the full channel. */
static inline float channel(float value, float chroma, float place)
{
    float at = place - floorf(place * (float)(1.0 / 6.0)) * 6.0f, other = 4.0f - at;
    return value - chroma * clamped(at < other ? at : other);
}

FASTEST static void turn(Piece *piece, int64_t count, float sixths)
{
    for (int64_t i = 0; i < count; i++) {
        float red = piece->red[i], green = piece->green[i], blue = piece->blue[i];
        float most = red > green ? red : green, least = red < green ? red : green;
        float value = most > blue ? most : blue;
        float chroma = value - (least < blue ? least : blue);
        float apart = value == red ? green - blue : value == green ? blue - red : red - green;
        float begin = value == red ? 0.0f : value == green ? 2.0f : 4.0f;
        float hue = apart / (chroma == 0.0f ? 1.0f : chroma) + begin + sixths;
        piece->red[i] = channel(value, chroma, hue + 5.0f);
        piece->green[i] = channel(value, chroma, hue + 3.0f);
        piece->blue[i] = channel(value, chroma, hue + 1.0f);
    }
}

static void load_piece(const Job *job, int64_t at, int64_t count, const float *factors,
                       Piece *piece)
{
    float *channels[3] = {piece->red, piece->green, piece->blue};
    for (int c = 0; c < 3; c++) {
        load(job, at + c * job->pixels, count, channels[c]);
        if (job->steps & BRIGHTNESS)
            blend(channels[c], count, factors[0], 0.0f);
    }
}

static float mean_gray(const Job *job, int64_t start, const float *factors)
{
    Piece piece;
    int64_t total = 0;
    for (int64_t i = 0; i < job->pixels; i += PIECE) {
        int64_t count = job->pixels - i < PIECE ? job->pixels - i : PIECE;
        load_piece(job, start + i, count, factors, &piece);
        total += sum_of_gray(&piece, count);
    }
    return (float)((double)total * (1.0 / (65536.0 * (double)job->pixels)));
}

static void record(const void *given, int64_t number)
{
    const Job *job = given;
    const float *factors = job->factors + 4 * number;
    int64_t start = number * 3 * job->pixels;
    float mean = job->steps & CONTRAST ? mean_gray(job, start, factors) : 0.0f;
    Piece piece;
    float *channels[3] = {piece.red, piece.green, piece.blue};
    for (int64_t i = 0; i < job->pixels; i += PIECE) {
        int64_t count = job->pixels - i < PIECE ? job->pixels - i : PIECE;
        load_piece(job, start + i, count, factors, &piece);
        for (int c = 0; c < 3 && job->steps & CONTRAST; c++)
            blend(channels[c], count, factors[1], mean);
        if (job->steps & SATURATION)
            saturate(&piece, count, factors[2]);
        if (job->steps & HUE)
            turn(&piece, count, factors[3]);
        for (int c = 0; c < 3; c++)
            memcpy(job->out + start + c * job->pixels + i, channels[c],
                   (size_t)count * sizeof(float));
    }
}

void paceline_color_jitter(const void *image, int of_bytes, int64_t batch, int64_t pixels,
                           int steps, const float *factors, float *out, int threads)
{
    Job job = {image, of_bytes, steps, pixels, factors, out};
    each_record(record, &job, batch, threads);
}
