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
    if (form == Form::int8 || span_bits(form) > 0) return step == 0 ? 0 : std::nearbyint((double)(value * step));
    if (form == Form::fp32) return value;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The weights of an output in spans, from its packed bytes; NaN where a number is not the nearest one.
static std::vector<double> in_spans(const Linear& map, const float* weight, int output) {
    std::vector<double> found(map.inputs);
    const int bits = span_bits(map.form), together = 8 / bits;
    for (int i = 0; i < map.inputs; ++i) {
        const char* span = map.packed.get() + ((size_t)output / PANEL * (map.grouped / SPAN) + i / SPAN) * span_bytes(bits);
        const double step = from_bfloat16(((const uint16_t*)span)[output % PANEL]);
        const int group = i % SPAN / INT8_GROUP;
        const uint8_t byte = span[SPAN_STEPS + (group / together * PANEL + output % PANEL) * INT8_GROUP + i % INT8_GROUP];
        const int number = byte >> group % together * bits & ((1 << bits) - 1);
        const double steps = bits == 4 ? number - 8 : 2 * number - 3, away = step == 0 ? 0 : weight[i] / step - steps;
        const bool is_last = number == (away < 0 ? 0 : (1 << bits) - 1);
        found[i] = is_last || std::fabs(away) <= (bits == 4 ? 0.5001 : 1.0002) ? steps * step : NAN;
    }
    return found;
}

// Whether a map in spans takes its largest outputs from one in int8, and leaves the others.
static bool takes_exact(const Linear& map, const std::vector<float>& weight, const std::vector<float>& bias,
                        const std::vector<float>& x, const std::vector<float>& rough, int rows, int threads) {
    const std::unique_ptr<Linear> exact(paradec_map_new(weight.data(), bias.data(), map.outputs, map.inputs, (int)Form::int8));
    const std::unique_ptr<Linear> both(paradec_map_with_exact(&map, exact.get()));
    std::vector<float> found(rough.size()), right(rough.size());
    if (paradec_map(both.get(), x.data(), map.inputs, rows, found.data(), map.outputs, 0, threads) != 0) return false;
    if (paradec_map(exact.get(), x.data(), map.inputs, rows, right.data(), map.outputs, 0, threads) != 0) return false;
    for (int r = 0; r < rows; ++r) {
        const size_t first = (size_t)r * map.outputs;
        const float best = *std::max_element(found.begin() + first, found.begin() + first + map.outputs);
        bool is_right = false;
        for (size_t i = first; i < first + map.outputs; ++i) {
            const float near = 1e-6f * (std::fabs(right[i]) + std::fabs(bias[i - first])) + 1e-30f;
            const bool same = std::fabs(found[i] - right[i]) <= near;
            if (!same && found[i] != rough[i]) return false;
            is_right |= same && found[i] == best;
        }
        if (!is_right && map.outputs <= 16) return false;  // of more, the largest can be a rough one
    }
    return true;
}

// Returns 0 if all of them are right.
static int check() {
    long products = 0;
    double worst = 0;  // error over its bound
    for (int turn = 0; products < 1000000; ++turn) {
        const Form form = (Form)(turn % 5);
        const int outputs = between(1, 100), inputs = between(1, turn % 3 == 0 ? 400 : 70);
        const int rows = between(1, turn % 2 ? 12 : 80), threads = between(1, 2);
        const auto weight = numbers(outputs, inputs), x = numbers(rows, inputs), bias = numbers(outputs, 1);
        Linear* map = paradec_map_new(weight.data(), bias.data(), outputs, inputs, (int)form);
        std::vector<float> found((size_t)rows * outputs);
        if (paradec_map(map, x.data(), inputs, rows, found.data(), outputs, 0, threads) != 0) return 1;
        const std::unique_ptr<Linear> freed(map);
        if (HALVES && span_bits(form) > 0 && !takes_exact(*map, weight, bias, x, found, rows, threads)) return 1;
        // Without dot products of bfloat16, inputs stay as they are.
        const Form of_inputs = form == Form::bf16 && BF16_GROUP == 1 ? Form::fp32 : form;
        for (int o = 0; o < outputs; ++o) {
            const float* w = weight.data() + (size_t)o * inputs;
            const float peak = peak_of_row(w, inputs);
            const int bits = HALVES ? span_bits(form) : 0;
            const bool whole = span_bits(form) > 0 || form == Form::int8;
            const std::vector<double> rounded = bits > 0 ? in_spans(*map, w, o) : std::vector<double>();
            for (int r = 0; r < rows; ++r) {
                const float* row = x.data() + (size_t)r * inputs;
                const float top = peak_of_row(row, inputs), step = top > 0 ? 127 / top : 0;
                double total = 0, size = 0;
                const float scale = peak == 0 ? 1 : peak / 127;
                for (int i = 0; i < inputs; ++i) {
                    double a = whole ? std::nearbyint((double)(w[i] / scale)) * scale : kept(w[i], form, 0);
                    if (bits > 0) a = rounded[i];
                    const double term = a * kept(row[i], of_inputs, step);
                    total += term, size += std::fabs(term);
                }
                // Whole numbers add up exactly, those of each span; the others lose a rounding a term.
                double terms = inputs;
                if (whole) {
                    total *= top / 127, size *= top / 127;
                    terms = bits > 0 ? inputs / SPAN : INT8_GROUP > 1 ? 0 : inputs;
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
