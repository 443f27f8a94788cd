/* Random windows of images: framework/transform/random_resized_crop.py, which has the same in NumPy.

   The numbers are few, but between two slices of images all caches lose what twenty operators need,
   so that those take five times as long as they do in a loop. */

#include <math.h>
#include <stdint.h>

typedef struct {
    double least, most;         /* share of the area */
    double low, high;           /* logarithm of the ratio of width to height */
    double flip, flip_vertical; /* probabilities */
} Options;

static int64_t limited(double wanted, int64_t limit)
{
    int64_t size = (int64_t)rint(wanted);
    size = size < 1 ? 1 : size;
    return size > limit ? limit : size;
}

/* Write top, left, height, width and flip for each of n images. Sizes are height and width, ``step``
   numbers after each other; draws are six a record. */
int paceline_random_windows(const int64_t *sizes, int64_t step, int64_t n, const float *draws,
                            const Options *options, int64_t *out)
{
    for (int64_t i = 0; i < n; i++, sizes += step, draws += 6, out += 5) {
        double area = (double)(sizes[0] * sizes[1]) *
                      (options->least + draws[0] * (options->most - options->least));
        double ratio = exp(options->low + draws[1] * (options->high - options->low));
        double height = sqrt(area / ratio), width = sqrt(area * ratio);
        double shrink = fmin(1, fmin((double)sizes[0] / height, (double)sizes[1] / width));
        out[2] = limited(height * shrink, sizes[0]);
        out[3] = limited(width * shrink, sizes[1]);
        out[0] = (int64_t)(draws[2] * (double)(sizes[0] - out[2] + 1));
        out[1] = (int64_t)(draws[3] * (double)(sizes[1] - out[3] + 1));
        out[4] = (draws[4] < (float)options->flip) + 2 * (draws[5] < (float)options->flip_vertical);
    }
    return 0;
}
