// Random stacks of odd sizes through every entry of the native library, for the sanitizers.
#include <cstdio>
#include <random>

#include "native.cpp"

static std::mt19937 source(1);

static std::vector<float> numbers(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> found(count);
    for (auto& value : found) value = 0.3f * normal(source);
    return found;
}

static int between(int low, int high) { return low + (int)(source() % (unsigned)(high - low + 1)); }

int main() {
    double total = 0;
    for (int turn = 0; turn < 12; ++turn) {
        const int form = turn % 3, heads = between(1, 4), own = between(1, 21), dim = heads * own;
        const int size = padded(own), inner = between(1, 70), words = between(5, 90), layers = between(1, 3);
        const int rows = between(1, 4), all = heads * size;
        Stack* stack = paradec_stack_new(dim, heads, size, 1 / std::sqrt((float)own), layers);
        const auto table = numbers((size_t)words * dim), places = numbers((size_t)9 * dim);
        paradec_stack_tables(stack, table.data(), words, 2, turn % 2 ? places.data() : nullptr, 9);
        const auto ones = numbers(dim), none = numbers(std::max({inner, 3 * all, dim}));
        for (int layer = 0; layer < layers; ++layer) {
            const int shapes[6][2] = {{3 * all, dim}, {dim, all}, {all, dim}, {dim, all}, {inner, dim}, {dim, inner}};
            for (int which = 0; which < 6; ++which) {
                const int outputs = shapes[which][0], inputs = shapes[which][1];
                const auto weight = numbers((size_t)outputs * inputs);
                paradec_stack_map(stack, layer, which, weight.data(), none.data(), outputs, inputs, form);
            }
            for (int which = 0; which < 3; ++which) paradec_stack_norm(stack, layer, which, ones.data(), ones.data(), 1e-5f);
            paradec_stack_layer(stack, layer, turn % 2, turn % 5);
        }
        Workspace* work = paradec_workspace_new();
        const int slots = padded(32), length = between(1, LANES + 3), source_slots = padded(length);
        std::vector<float> keys((size_t)layers * rows * all * slots), values(keys.size());
        std::vector<float> far((size_t)layers * rows * all * source_slots, 0.1f), near(far);
        std::vector<int32_t> lengths(rows, length);
        Store own_store{keys.data(), values.data(), rows, slots, nullptr};
        Store source_store{far.data(), near.data(), rows, source_slots, lengths.data()};
        int start = 0;
        for (int width : {between(1, 3), between(1, 2 * BLOCK + 3), 1}) {
            const int count = rows * width;
            std::vector<int64_t> tokens(count);
            std::vector<int32_t> row(count), place(count), until(count);
            std::vector<uint8_t> mask((size_t)count * slots, 1);
            for (int i = 0; i < count; ++i) {
                tokens[i] = between(0, words - 1);
                row[i] = i / width;
                place[i] = start + i % width;
                until[i] = place[i] + 1;
            }
            std::vector<float> states((size_t)count * padded(dim));
            Chunk chunk{count, tokens.data(), row.data(), place.data(), until.data(),
                        turn % 4 == 3 ? mask.data() : nullptr, slots};
            paradec_pass(stack, &chunk, &own_store, turn % 3 ? &source_store : nullptr, states.data(), work);
            const auto weight = numbers((size_t)words * dim);
            Linear* map = paradec_map_new(weight.data(), nullptr, words, dim, form);
            std::vector<float> scores((size_t)count * words);
            paradec_map(map, states.data(), padded(dim), count, scores.data(), work);
            for (float score : scores) total += std::isfinite(score);
            if (total < 1) return 1;
            paradec_map_free(map);
            start += width;
        }
        paradec_workspace_free(work);
        paradec_stack_free(stack);
    }
    std::printf("%.0f finite scores, %d lanes\n", total, paradec_lanes());
}
