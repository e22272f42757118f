// A million random products of the native library against float64, for the sanitizers.
// native_driver.cpp includes it behind the library: one compilation serves both.
namespace products {

static std::mt19937 source(7);

static int between(int low, int high) { return low + (int)(source() % (unsigned)(high - low + 1)); }

// Numbers of very different sizes; some rows are zeros.
static std::vector<float> numbers(int rows, int columns) {
    std::normal_distribution<float> normal;
    std::vector<float> found((size_t)rows * columns);
    for (int r = 0; r < rows; ++r) {
        const float size = between(0, 20) == 0 ? 0 : std::ldexp(1.0f, between(-20, 20));
        for (int c = 0; c < columns; ++c) found[(size_t)r * columns + c] = size * normal(source);
    }
    return found;
}

static float peak_of_row(const float* row, int count) {
    float peak = 0;
    for (int i = 0; i < count; ++i) peak = std::max(peak, std::fabs(row[i]));
    return peak;
}

// A number as a form keeps it: rounded to 8 bits of mantissa, or to a whole number of steps.
static double kept(float value, Form form, float step) {
    if (form == Form::int8 || form == Form::int4) return step == 0 ? 0 : std::nearbyint((double)(value * step));
    if (form == Form::fp32) return value;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Returns 0 if all of them are right.
static int check() {
    long products = 0;
    double worst = 0;  // error over its bound
    for (int turn = 0; products < 1000000; ++turn) {
        const Form form = (Form)(turn % 4);
        const int outputs = between(1, 100), inputs = between(1, turn % 5 == 0 ? 400 : 70);
        const int rows = between(1, turn % 2 ? 12 : 80), threads = between(1, 2);
        const auto weight = numbers(outputs, inputs), x = numbers(rows, inputs), bias = numbers(outputs, 1);
        Linear* map = paradec_map_new(weight.data(), bias.data(), outputs, inputs, (int)form);
        std::vector<float> found((size_t)rows * outputs);
        if (paradec_map(map, x.data(), inputs, rows, found.data(), outputs, 0, threads) != 0) return 1;
        paradec_map_free(map);
        // Without dot products of bfloat16, inputs stay as they are.
        const Form of_inputs = form == Form::bf16 && BF16_GROUP == 1 ? Form::fp32 : form;
        for (int o = 0; o < outputs; ++o) {
            const float* w = weight.data() + (size_t)o * inputs;
            const float peak = peak_of_row(w, inputs);
            const bool four = form == Form::int4 && HALVES, whole = form == Form::int4 || form == Form::int8;
            for (int r = 0; r < rows; ++r) {
                const float* row = x.data() + (size_t)r * inputs;
                const float top = peak_of_row(row, inputs), step = top > 0 ? 127 / top : 0;
                double total = 0, size = 0;
                float scale = peak == 0 ? 1 : peak / 127;
                for (int i = 0; i < inputs; ++i) {
                    if (four && i % SPAN == 0) scale = step_of_4_bits(w + i, std::min(SPAN, inputs - i));
                    double a = whole ? std::nearbyint((double)(w[i] / scale)) : kept(w[i], form, 0);
                    if (four) a = std::clamp(a, -8.0, 7.0);
                    const double term = a * kept(row[i], of_inputs, step) * (whole ? scale : 1);
                    total += term, size += std::fabs(term);
                }
                // Whole numbers add up exactly, those of each span; the others lose a rounding a term.
                double terms = inputs;
                if (whole) {
                    total *= top / 127, size *= top / 127;
                    terms = four ? inputs / SPAN : INT8_GROUP > 1 ? 0 : inputs;
                }
                const double error = std::fabs(found[(size_t)r * outputs + o] - (total + bias[o]));
                const double bound = 1.2e-7 * ((terms + 4) * size + 2 * std::fabs(bias[o])) + 1e-30;
                worst = std::max(worst, error / bound);
                if (!(error <= bound)) {
                    std::printf("form %d, %d rows, %d inputs: error %g, bound %g\n", (int)form, rows, inputs, error, bound);
                    return 1;
                }
            }
        }
        products += (long)rows * outputs;
    }
    std::printf("%ld products, errors at most %.2f of their bounds\n", products, worst);
    return 0;
}

}  // namespace products
