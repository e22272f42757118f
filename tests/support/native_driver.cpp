// Random stacks of odd sizes through every entry of the native library, for the sanitizers; with
// an argument, its products alone.
#include <cstdio>
#include <random>

#include "native.cpp"
#include "products_driver.h"

static std::mt19937 source(1);

static std::vector<float> numbers(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> found(count);
    for (auto& value : found) value = 0.3f * normal(source);
    return found;
}

static int between(int low, int high) { return low + (int)(source() % (unsigned)(high - low + 1)); }

// Rows of weights and of inputs as small as floats are: the sums are finite, and right to the
// rounding of the form. Returns whether they are.
static bool small_rows_are_right() {
    const float sizes[] = {0, 1e-45f, 1e-40f, 1e-38f, 1e-37f, 3e-37f, 1e-36f, 1e-35f, 1e-30f, 1e-10f, 1};
    const int inputs = 19, outputs = 13;
    for (int form = 0; form < 5; ++form) {
        for (float size : sizes) {
            for (float other : sizes) {
                auto weight = numbers(outputs * inputs), rows = numbers(2 * inputs);
                for (int i = 0; i < outputs * inputs; ++i) weight[i] *= i / inputs % 2 ? size : 1;
                for (int i = 0; i < 2 * inputs; ++i) rows[i] *= i / inputs % 2 ? other : 1;
                Linear* map = paradec_map_new(weight.data(), nullptr, outputs, inputs, form);
                std::vector<float> found(2 * padded(outputs));
                paradec_map(map, rows.data(), inputs, 2, found.data(), padded(outputs), 0, 1);
                paradec_map_free(map);
                for (int r = 0; r < 2; ++r) {
                    for (int o = 0; o < outputs; ++o) {
                        double right = 0, most = 0;
                        for (int i = 0; i < inputs; ++i) {
                            const double term = (double)weight[o * inputs + i] * rows[r * inputs + i];
                            right += term;
                            most += std::fabs(term);
                        }
                        const float value = found[r * padded(outputs) + o];
                        // Rows below 1e-35 may count as zeros.
                        const double bound = most * (form == 0 ? 1e-5 : form == 4 ? 1.5 : form == 3 ? 0.5 : 0.2) + 1e-34;
                        if (!(std::fabs(value - right) <= bound)) {
                            std::fprintf(stderr, "form %d, weights of %g, inputs of %g: %g, not %g\n", form, size, other, value, right);
                            return false;
                        }
                    }
                }
            }
        }
    }
    return true;
}

int main(int words_given, char**) {
    if (!paradec_allowed()) return 2;  // the kernel must grant tiles before the first
    if (words_given > 1) return products::check();
    if (!small_rows_are_right()) return 1;
    double total = 0;
    for (int turn = 0; turn < 24; ++turn) {
        const int form = turn / 2 % 5, heads = between(1, 4), own = between(1, 21), dim = heads * own;
        const int size = padded(own), inner = between(1, 70), words = between(5, 90), layers = between(1, 3);
        const int rows = between(1, 4), all = heads * size, threads = between(1, 3);
        Stack* stack = paradec_stack_new(dim, heads, size, 1 / std::sqrt((float)own), layers);
        const auto table = numbers((size_t)words * dim), positions = numbers((size_t)9 * dim);
        paradec_stack_tables(stack, table.data(), words, 2, turn % 2 ? positions.data() : nullptr, 9);
        const auto ones = numbers(dim), none = numbers(std::max({inner, 3 * all, dim}));
        const bool is_t5 = turn % 3 == 1;
        const int reach = between(1, 12);
        const auto biases = numbers((size_t)heads * (2 * reach + 1));
        if (is_t5) paradec_stack_biases(stack, biases.data(), reach);
        for (int layer = 0; layer < layers; ++layer) {
            const int shapes[7][2] = {{3 * all, dim}, {dim, all}, {all, dim}, {dim, all}, {inner, dim}, {inner, dim}, {dim, inner}};
            for (int which = 0; which < 7; ++which) {
                if (which == FEED_GATE && !is_t5) continue;
                const int outputs = shapes[which][0], inputs = shapes[which][1];
                const auto weight = numbers((size_t)outputs * inputs);
                paradec_stack_map(stack, layer, which, weight.data(), none.data(), outputs, inputs, form);
            }
            for (int which = 0; which < 3; ++which) {
                paradec_stack_norm(stack, layer, which, ones.data(), is_t5 ? nullptr : ones.data(), 1e-5f);
            }
            paradec_stack_layer(stack, layer, turn % 2, turn % 5);
        }
        const int slots = padded(64), length = between(1, LANES + 3), source_slots = padded(length);
        std::vector<float> keys((size_t)layers * rows * all * slots), values(keys.size());
        std::vector<float> far((size_t)layers * rows * all * source_slots), near(far);
        std::vector<int32_t> lengths(rows), begins(rows), starts(rows, 0), places(rows);
        for (int b = 0; b < rows; ++b) {
            lengths[b] = between(1, length);
            begins[b] = length - lengths[b];
            places[b] = rows - 1 - b;
        }
        Store own_store{keys.data(), values.data(), layers, rows, slots, nullptr};
        Store source_store{far.data(), near.data(), layers, rows, source_slots, lengths.data()};
        const auto map_weight = numbers((size_t)2 * layers * all * dim), states_of_source = numbers((size_t)rows * length * dim);
        Linear* source_map = paradec_map_new(map_weight.data(), nullptr, 2 * layers * all, dim, form);
        paradec_source(stack, source_map, states_of_source.data(), dim, length, begins.data(), &source_store, threads);
        paradec_map_free(source_map);
        for (int width : {between(1, 3), between(1, 2 * BLOCK + 3), 1}) {
            const int count = rows * width;
            const int most = turn % 7 == 3 ? 5 : 1;
            std::vector<int64_t> tokens(count), drafted(count), best(count * most), rank(count), forced(count, 1);
            std::vector<int32_t> seen(count), counts(rows), bases(rows), depths(count);
            std::vector<uint8_t> mask((size_t)width * slots, 1), limits(count), sees((size_t)count * slots);
            std::vector<float> states((size_t)count * padded(dim)), score(count * most), drafted_score(count);
            for (int i = 0; i < count; ++i) {
                tokens[i] = between(0, words - 1);
                drafted[i] = between(0, words + 3);
                limits[i] = (uint8_t)between(0, 7);
                if (between(0, 3) == 0) forced[i] = between(0, words + 3);
                seen[i] = between(i % width + 1, width);
                depths[i] = between(0, 20);
            }
            for (int b = 0; b < rows; ++b) counts[b] = between(1, width), bases[b] = between(0, starts[b]);
            for (auto& one : sees) one = (uint8_t)(between(0, 2) == 0);
            Chunk chunk{};
            chunk.rows = rows, chunk.width = width, chunk.tokens = tokens.data();
            chunk.starts = starts.data(), chunk.own_rows = places.data(), chunk.source_rows = places.data();
            if (turn % 2) chunk.counts = counts.data();
            if (turn % 4 == 1) chunk.seen = seen.data(), chunk.seen_rows = turn % 8 == 1 ? rows : 1;
            if (turn % 4 == 3) chunk.mask = mask.data(), chunk.slots = slots;
            if (turn % 4 == 2) chunk.bases = bases.data(), chunk.depths = depths.data(), chunk.sees = sees.data(), chunk.tree = slots;
            const Store* source = turn % 3 ? &source_store : nullptr;
            if (paradec_pass(stack, &chunk, &own_store, source, states.data(), threads) != 0) return 1;
            std::vector<float> looks((size_t)count * source_slots, 0.0f);
            const int layer = between(0, layers - 1), some = between(1, heads);
            if (paradec_attention(stack, &chunk, &own_store, &source_store, layer, some, looks.data(), threads) != 0) return 1;
            if (turn % 2 == 0) {
                const float sum = std::accumulate(looks.begin(), looks.end(), 0.0f);
                if (std::abs(sum / count - 1) > 1e-3) return 1;
            }
            const auto weight = numbers((size_t)words * dim);
            Linear* map = paradec_map_new(weight.data(), nullptr, words, dim, form);
            std::vector<float> scores((size_t)count * words);
            paradec_map(map, states.data(), padded(dim), count, scores.data(), words, turn % 5, threads);
            for (float one : scores) total += std::isfinite(one);
            if (total < 1) return 1;
            const int64_t suppressed[2] = {4, words + 2};
            const int64_t sequences[6] = {words + 1, 4, 5, 4, 4, words - 1};
            const int32_t sizes[3] = {1, 2, 3};
            Rules rules{1, 3, 2, turn % 7 - 1, 0.5f, 1.1f, turn % 3 ? 1 : 1.5f, turn % 2, suppressed, sequences, sizes,
                        turn % 2 * 2, turn % 4, turn % 4, turn % 7 == 6, turn % 5 == 1};
            std::vector<Before> before;
            for (int i = 0; i < count; ++i) before.push_back({tokens.data(), drafted.data(), between(0, count), between(0, count)});
            Choices choices{};
            choices.before = before.data();
            choices.best = best.data(), choices.score = score.data(), choices.normalised = turn % 2, choices.count = most;
            if (turn % 3) choices.limits = limits.data(), choices.forced = forced.data();
            if (turn % 5) choices.drafted = drafted.data(), choices.drafted_score = drafted_score.data(), choices.drafted_rank = rank.data();
            if (paradec_choose(map, &rules, &choices, states.data(), padded(dim), count, threads) != 0) return 1;
            for (int64_t one : best) if (one < 0 || one >= words) return 1;
            const int further = between(1, 5);
            std::vector<int32_t> wanted(rows, further), written(rows), fresh(rows);
            std::vector<int64_t> text((size_t)rows * further), must(text.size(), 1);
            std::vector<float> said(text.size());
            std::vector<uint8_t> bits(text.size(), NO_END);
            for (int b = 0; b < rows; ++b) wanted[b] = between(0, further), fresh[b] = between(1, width);
            Writing writing{wanted.data(), further, turn % 2 ? -1e9f : -2.0f, turn % 2, bits.data(), must.data(), before.data(), text.data(), said.data(), written.data()};
            if (turn % 3 == 0) writing.limits = nullptr, writing.forced = nullptr;
            Chunk first{};
            first.rows = rows, first.width = width, first.tokens = tokens.data(), first.counts = fresh.data();
            first.starts = starts.data(), first.own_rows = places.data(), first.source_rows = places.data();
            if (paradec_write(stack, map, &rules, &writing, &first, &own_store, source, threads) != 0) return 1;
            for (int b = 0; b < rows; ++b) if (written[b] > wanted[b] || (wanted[b] > 0) != (written[b] > 0)) return 1;
            const int width_of_beam = between(1, 4), at_once = between(1, 4), longest = at_once * between(2, 20);
            const bool all_ends = at_once == 1 && turn % 2 == 1;  // steps as CTranslate2's
            const int room = all_ends ? 2 * width_of_beam : width_of_beam, early = all_ends ? turn % 3 : 0;
            std::vector<int32_t> limits_of(rows), passes(rows), found_of(rows), lengths_of(rows * room);
            std::vector<float> totals_of(lengths_of.size()), scores_of(lengths_of.size() * longest);
            std::vector<int64_t> words_of(scores_of.size());
            std::vector<uint8_t> ends_late((size_t)rows * longest, longest > 20 ? NO_END : 0);
            for (int32_t& one : limits_of) one = between(1, longest - 1);
            const std::vector<int64_t> begins(at_once, 2);
            std::vector<int64_t> begun((size_t)rows * longest, 1);
            for (int b = 0; b < rows; ++b) begun[(size_t)b * longest] = between(2, words - 1);
            const std::vector<double> divided(longest + 1, 2.5);
            Search wide{rows, width_of_beam, room, std::min(early, width_of_beam), std::max(1, width_of_beam - turn % 2), std::min(width_of_beam + 1, words), at_once, at_once == 2 && turn % 3, begins.data(), turn % 2 ? divided.data() : nullptr,
                        limits_of.data(), longest, ends_late.data(), all_ends ? begun.data() : nullptr,
                        passes.data(), found_of.data(), lengths_of.data(), totals_of.data(), words_of.data(), scores_of.data()};
            if (at_once > 1) rules.ngram = rules.num_sequences = 0, rules.penalty = 1;  // a step has one word
            if (turn % 5) {
                // Each part of a pass is a call, or all of them are.
                const Searcher model{stack, map, &source_store};
                const bool drafts = at_once == 1 && turn % 2 == 0;
                std::vector<int32_t> rounds((size_t)rows * longest * 4);
                const Drafting drafting{between(1, 5), turn % 4 == 0, rounds.data()};
                Resumable* search = drafts ? paradec_search_drafts_new(&model, &model, &rules, &wide, &drafting)
                                           : paradec_search_new(&model, &rules, &wide);
                int status = TIME_IS_UP;
                while (status == TIME_IS_UP) status = paradec_search_run(search, turn % 3 * 50, threads);
                paradec_search_free(search);
                if (status != ALL_ENDED) return 1;
                for (int32_t one : found_of) if (one < 0 || one > room) return 1;
                for (int b = 0; b < rows; ++b) if (passes[b] < 1 || passes[b] > limits_of[b] + 1) return 1;
            }
            // Rows that are drafted by nothing, by the model itself, by guesses, by heads, or by an earlier output.
            const int learned = between(1, 4), units = between(1, 6), dense = turn % 2, reads = turn / 2 % 2;
            auto weights_of = [&](int outputs, int inputs) {
                const auto weight = numbers((size_t)outputs * inputs);
                return paradec_map_new(weight.data(), nullptr, outputs, inputs, turn % 3);
            };
            Linear* inner = weights_of(learned * units, dim * (1 + reads));
            std::vector<Linear*> outer;
            for (int i = 0; i < (dense ? 1 : learned); ++i) outer.push_back(dense ? weights_of(learned * dim, learned * units) : weights_of(dim, units));
            const bool identity = turn / 4 % 2;
            const Heads heads{inner, outer.data(), (int)outer.size(), learned, identity, reads, turn % 3};
            const int limit = std::min(between(3, 12), slots - 1);  // at least the minimal length
            const int given_length = turn % 2 * 5, window = turn % 9 / 3;
            // A whole block converges where it stays, and nothing else is drafted.
            const int whole = turn % 5 == 2 && given_length == 0 && window != SLIDING;
            const int by = turn / 2 % 5, drafts_most = by == HEADS ? learned - !identity : between(1, 6);
            const Drafted how{by, turn % 2, drafts_most, turn % 2, -3.0f, 1, between(4, 40), window,
                              turn % 4 ? -1 : 3, whole, turn % 4, between(6, 8), turn / 8 % 2, 3, &heads, 2, turn % 4, turn % 3};
            DraftLoop* loop = paradec_drafts_new(&how, &rules);
            const Reader reader{stack, map, &own_store, source};
            const Until until{turn % 2 * 50, turn % 3 == 0};
            for (int b = 0; b < rows; ++b) {
                const std::vector<int64_t> given{3, 4, 3, 4, 2}, prefix{1, 3}, text{4, 5, 2};
                const Entry entry{limit, prefix.data(), given.data(), text.data(), turn % 3, given_length,
                                  3, between(1, 5), places[b], places[b], places[b], places[b]};
                if (paradec_drafts_add(loop, &entry) != b) return 1;
            }
            int status = TIME_IS_UP;
            while (status == TIME_IS_UP || status == ONE_ENDED) status = paradec_drafts_run(loop, &reader, &reader, &until, threads);
            if (status == NO_ROOM ? paradec_drafts_slots(loop) <= slots : status != ALL_ENDED && status != DRAFTER_IS_NAN) return 1;
            for (int b = 0; b < rows; ++b) {
                Written text;
                paradec_drafts_written(loop, b, &text);
                if (status == ALL_ENDED && (!text.ended || text.length > limit + 1 || text.tokens[text.length - 1] != 2)) return 1;
            }
            paradec_drafts_free(loop);
            paradec_map_free(inner);
            for (Linear* map_of_head : outer) paradec_map_free(map_of_head);
            tokens[0] = turn % 2 ? words : -1;
            chunk.counts = nullptr;
            if (paradec_pass(stack, &chunk, &own_store, source, states.data(), threads) != 2) return 1;
            paradec_map_free(map);
            const int32_t copied[2] = {0, rows - 1};
            paradec_copy(stack, &own_store, copied, copied + 1, 1, slots - turn % 3);
            const int32_t to[2] = {0, 1}, of[2] = {between(1, slots - 2), slots - 1};
            paradec_move(stack, &own_store, copied, to, of, 2);
            for (int32_t& start : starts) start = std::min(start + width, slots - 2 * BLOCK - 9);
        }
        paradec_stack_free(stack);
        // A step of a beam search; some scores are -inf or NaN.
        const int sentences = between(1, 3), beam = between(2, 6), width = turn % 2 ? beam : 1, z = between(1, 4);
        const int candidates = between(1, beam + 1), slots_of = sentences * width * z;
        int each = 1;
        for (int i = 0; i < z; ++i) each = std::min(beam, each * candidates);
        const int kept = std::min(beam, width * each);
        std::vector<int64_t> found((size_t)slots_of * candidates), parents(sentences * z * beam), texts(parents.size() * z);
        auto before = numbers(sentences * width), of_found = numbers(found.size()), of_end = numbers(slots_of);
        if (turn % 3 == 0) of_found[0] = before[0] = turn % 6 ? NAN : -INFINITY;
        std::vector<float> sums(parents.size()), of_texts(texts.size());
        for (auto& one : found) one = between(0, 4);
        const Step step{sentences, width, z, candidates, beam, kept, 2, before.data(), found.data(), of_found.data(), of_end.data(), 0};
        const Extended ended{sums.data(), parents.data(), texts.data(), of_texts.data()};
        std::vector<int64_t> next(sentences * kept), next_texts(next.size() * z);
        std::vector<float> next_sums(next.size()), of_next(next_texts.size());
        const Extended alive{next_sums.data(), next.data(), next_texts.data(), of_next.data()};
        if (paradec_extend(&step, &ended, &alive) != 0) return 1;
        for (int64_t one : next) if (one < 0 || one >= width) return 1;
    }
    std::printf("%.0f finite scores, %d lanes\n", total, paradec_lanes());
}
