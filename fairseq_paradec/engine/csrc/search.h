// Beam search of a whole batch, one word or several a step, in calls that go on where the last one returned.
//
// All hypotheses of a sentence lie in one row of the cache, as paths through its slots: what they have
// in common lies there once, and a step copies nothing. A slot that no hypothesis goes through is free.
#pragma once

#include "beam.h"
#include "resume.h"

// What is searched, and what is found; tables of positions have `most` of them, more than any limit.
struct Search {
    int sentences, beam;
    int room;                         // of a sentence's hypotheses: `beam`, as many as fairseq's search keeps; or
                                      // more, where all that a step ends are kept, as by CTranslate2's
    int early;                        // then a sentence ends with its best hypothesis and so many; 0: with `enough`
    int enough;
    int candidates;                   // words that a hypothesis may go on with
    int words_a_step;                 // z
    int pairs;                        // whether a step's words are a pair
    const int64_t* starts;            // z, the decoder's first inputs
    const double* divisors;           // of scores, by the length with </s>; null: scores are compared as they are
    const int32_t* limits;            // sentences, at most so many words before </s>
    int most;                         // a multiple of z
    const uint8_t* bits;              // sentences x most, the limits of each position; null: none
    const int64_t* forced;            // the only word allowed; null: none
    int32_t* passes;                  // of each sentence
    int32_t* counts;                  // hypotheses found of each sentence, at most `room`
    int32_t* lengths;                 // sentences x room, with </s>
    float* totals;                    // sentences x room
    int64_t* words;                   // sentences x room x most
    float* scores;                    // of the words

    bool whole_steps() const { return room > beam; }
};

// A sentence's live hypotheses, all of the same length, and what its slots hold.
struct Tree {
    int sentence = 0;
    std::vector<std::vector<int32_t>> paths;  // of each hypothesis, the slots of its inputs
    std::vector<float> totals;
    std::vector<int64_t> words;               // of each slot
    std::vector<float> scores;                // of the slots' words
    int may_end = 0;                          // in the next step, so many at most
    bool best_ended = false;                  // whether the best of a step has

    // Let hypotheses go on behind those before, each by z words; false: there are too few slots.
    bool grow(const int64_t* parents, const int64_t* next, const float* next_scores, int count, int z) {
        std::vector<std::vector<int32_t>> longer(count);
        std::vector<uint8_t> used(words.size(), 0);
        for (int w = 0; w < count; ++w) {
            for (int32_t slot : paths[parents[w]]) used[slot] = 1;
        }
        size_t free = 0;
        for (int w = 0; w < count; ++w) {
            longer[w].reserve(paths[parents[w]].size() + z);
            longer[w] = paths[parents[w]];
            for (int i = 0; i < z; ++i, ++free) {
                while (free < used.size() && used[free]) ++free;
                if (free == used.size()) return false;
                longer[w].push_back((int32_t)free);
                words[free] = next[w * z + i];
                scores[free] = next_scores[w * z + i];
            }
        }
        paths = std::move(longer);
        return true;
    }
};

// Keep the texts of hypotheses that end behind those of a tree, the best first, as many as may end. Where there is
// no room the worst one goes.
inline void finish(const Search& to, const Tree& tree, const Extended& ended, size_t first, int count, int64_t end) {
    const int s = tree.sentence, z = to.words_a_step;
    std::vector<std::pair<double, size_t>> ranked;  // by the score that hypotheses are compared by
    for (size_t e = first; e < first + count; ++e) {
        if (!std::isfinite(ended.scores[e])) continue;
        const int64_t* words = ended.words + e * z;
        const size_t length = tree.paths[ended.parents[e]].size() - z + (std::find(words, words + z, end) - words) + 1;
        ranked.emplace_back(to.divisors == nullptr ? ended.scores[e] : ended.scores[e] / to.divisors[length], e);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    if ((int)ranked.size() > tree.may_end) ranked.resize(tree.may_end);
    for (const auto& [rank, e] : ranked) {
        const size_t all = (size_t)s * to.room;
        size_t at = all + to.counts[s];
        if (to.counts[s] < to.room) {
            ++to.counts[s];
        } else {
            at = std::min_element(to.totals + all, to.totals + at) - to.totals;
            if (to.totals[at] >= ended.scores[e]) return;
        }
        const std::vector<int32_t>& path = tree.paths[ended.parents[e]];
        int length = 0;
        const auto write = [&](int64_t word, float score) {
            to.words[at * to.most + length] = word;
            to.scores[at * to.most + length++] = score;
        };
        for (size_t i = z; i < path.size(); ++i) write(tree.words[path[i]], tree.scores[path[i]]);  // no first inputs
        for (size_t i = e * z; length == 0 || to.words[at * to.most + length - 1] != end; ++i) {
            write(ended.words[i], ended.word_scores[i]);
        }
        to.lengths[at] = length;
        to.totals[at] = ended.scores[e];
    }
}

// A model with the batch's source, which has been put.
struct Searcher {
    const Stack* stack;
    const Linear* projection;
    const Store* source;
};

// A search that returns after a while, and goes on in the next call.
class Resumable {
   public:
    Resumable(const Rules& rules, const Search& to) : rules(rules), to(to) {
        std::fill(to.passes, to.passes + to.sentences, 0);
        std::fill(to.counts, to.counts + to.sentences, 0);
    }
    virtual ~Resumable() = default;

    int run(const Deadline& deadline, Workspace& work) {
        while (!is_done()) {
            if (!go_on(work)) return NO_WORD;
            if (!is_done() && deadline.is_over()) return TIME_IS_UP;
        }
        return ALL_ENDED;
    }

    // Let the thread keep memory for its next search.
    virtual void give_back(Workspace&) {}

   protected:
    virtual bool is_done() const = 0;
    // Read a part of a pass, and do what follows it. False: a word is outside a vocabulary.
    virtual bool go_on(Workspace& work) = 0;

    const Rules rules;
    const Search to;
    Reading reading;
    // Of each token that is read: its limits, the words to go on with, and </s>.
    std::vector<uint8_t> bits;
    std::vector<int64_t> forced, best, ends;
    std::vector<Before> before;
    std::vector<int64_t> texts;  // of `before`, one behind the other
    std::vector<float> scores, end_scores;

    Choices choices() {
        Choices choices{};
        choices.limits = bits.data(), choices.forced = forced.data(), choices.drafted = ends.data();
        choices.before = before.data();
        choices.best = best.data(), choices.score = scores.data(), choices.drafted_score = end_scores.data();
        choices.normalised = 1, choices.count = to.candidates;
        return choices;
    }
};

class BeamSearch : public Resumable {
   public:
    BeamSearch(const Searcher& model, const Rules& rules, const Search& to, Workspace& work)
        : Resumable(rules, to), model(model), live(to.sentences) {
        // The rows get more slots when one of them is full.
        slots = std::min(2 * to.beam * to.words_a_step + 32, to.beam * to.most);
        std::swap(keys, work.keys), std::swap(values, work.values);
        own = make(slots);
        for (int s = 0; s < to.sentences; ++s) {
            live[s].sentence = s, live[s].may_end = to.beam;
            live[s].paths.resize(1);
            live[s].totals = {0};
            live[s].words.resize(slots), live[s].scores.resize(slots);
            for (int i = 0; i < to.words_a_step; ++i) live[s].paths[0].push_back(i), live[s].words[i] = to.starts[i];
        }
    }

    void give_back(Workspace& work) override { std::swap(keys, work.keys), std::swap(values, work.values); }

   protected:
    bool is_done() const override { return live.empty(); }

    bool go_on(Workspace& work) override {
        if (reading.is_done() && !list_words()) return false;
        read_part(*model.stack, *model.projection, rules, choices(), own, model.source, reading, work);
        if (reading.is_done()) extend_beams();
        return true;
    }

   private:
    const Searcher model;
    std::vector<Tree> live;
    int step = 0, slots = 0;
    Room keys, values;
    Store own{};
    std::vector<int64_t> parents, ended_words, alive_words;
    std::vector<float> totals, ended_scores, alive_scores, ended_word_scores, alive_word_scores;

    Store make(int count) {
        const Stack& stack = *model.stack;
        const size_t layers = stack.layers.size(), room = layers * to.sentences * stack.heads * stack.head_size * count;
        return {keys.of(room), values.of(room), (int)layers, to.sentences, count, nullptr};
    }

    // One pass reads the last words of every hypothesis; all of them see each other.
    bool list_words() {
        const int z = to.words_a_step;
        reading.clear(), reading.together = z, totals.clear(), bits.clear(), forced.clear(), before.clear();
        if (rules.read_texts()) list_texts();
        for (const Tree& tree : live) {
            totals.insert(totals.end(), tree.totals.begin(), tree.totals.end());
            for (const auto& path : tree.paths) {
                const Seen seen{0, nullptr, path.data(), (int)path.size()};
                for (int i = step * z; i < (step + 1) * z; ++i) {
                    const int64_t word = tree.words[path[i]];
                    if (word < 0 || word >= model.stack->vocabulary) return false;
                    reading.tokens.push_back({word, tree.sentence, tree.sentence, path[i], i, seen, reading.tokens.size()});
                    const size_t at = (size_t)tree.sentence * to.most + i;
                    bits.push_back(to.bits == nullptr ? 0 : to.bits[at]);
                    forced.push_back(to.forced == nullptr ? rules.pad : to.forced[at]);
                }
            }
        }
        const size_t rows = reading.tokens.size();
        best.resize(rows * to.candidates), scores.resize(rows * to.candidates), end_scores.resize(rows);
        ends.assign(rows, rules.end);
        return true;
    }

    // List the text of each hypothesis, for rules that read it; a step has one word there.
    void list_texts() {
        texts.resize(live.size() * to.beam * step);
        int64_t* text = texts.data();
        for (const Tree& tree : live) {
            for (const auto& path : tree.paths) {
                for (int i = 0; i < step; ++i) text[i] = tree.words[path[i + 1]];
                before.push_back({text, nullptr, step, 0});
                text += step;
            }
        }
    }

    void extend_beams() {
        const int B = to.beam, z = to.words_a_step, S = (int)live.size(), W = (int)live[0].paths.size();
        // 1. The best continuations.
        Step next{S, W, z, to.candidates, B, 0, rules.end, totals.data(), best.data(), scores.data(), end_scores.data(), to.pairs};
        const auto [ends_of, kept] = counts_of(next);
        next.kept = kept;
        const size_t most = (size_t)S * (ends_of + kept);
        parents.resize(most), ended_words.resize(most * z), alive_words.resize(most * z);
        ended_scores.resize(most), alive_scores.resize(most);
        ended_word_scores.resize(most * z), alive_word_scores.resize(most * z);
        const Extended ended{ended_scores.data(), parents.data(), ended_words.data(), ended_word_scores.data()};
        const Extended alive{alive_scores.data(), parents.data() + (size_t)S * ends_of, alive_words.data(), alive_word_scores.data()};
        extend(next, ended, alive);
        // 2. Ended hypotheses leave their beams, and sentences that have enough leave the batch.
        size_t stay = 0;
        for (int s = 0; s < S; ++s) {
            Tree& tree = live[s];
            const size_t first = (size_t)s * kept;
            ++to.passes[tree.sentence];
            if (to.whole_steps() && is_first_free(tree.sentence)) {
                forbid_early_ends(ended.scores + (size_t)s * ends_of, ends_of, alive.scores + first, kept);
            }
            finish(to, tree, ended, (size_t)s * ends_of, ends_of, rules.end);
            const bool lives = std::any_of(alive.scores + first, alive.scores + first + kept, [](float v) { return std::isfinite(v); });
            if (has_enough(tree, ended.scores + (size_t)s * ends_of, ends_of, alive.scores[first])) continue;
            if ((step + 1) * z > to.limits[tree.sentence] || !lives) continue;
            while (!tree.grow(alive.parents + first, alive.words + first * z, alive.word_scores + first * z, kept, z)) {
                if (slots == (int)tree.words.size()) add_slots();
                tree.words.resize(slots), tree.scores.resize(slots);
            }
            tree.totals.assign(alive.scores + first, alive.scores + first + kept);
            if (stay < (size_t)s) live[stay] = std::move(tree);
            ++stay;
        }
        live.resize(stay);
        ++step;
    }

    // Whether a step is the first one whose word a batch's prefixes leave open.
    bool is_first_free(int sentence) const {
        if (to.forced == nullptr) return false;
        const int64_t* forced = to.forced + (size_t)sentence * to.most + step;
        return forced[0] == rules.pad && (step == 0 || forced[-1] != rules.pad);
    }

    // There CTranslate2 lets the best candidate end, but none behind it, each of which leaves its place empty.
    static void forbid_early_ends(float* ended, int count, float* alive, int kept) {
        float* best = std::max_element(ended, ended + count);
        for (float* one = ended; one < ended + count; ++one) {
            if (!std::isfinite(*one) || (one == best && *one >= alive[0])) continue;
            *one = -INFINITY;
            if (kept > 0) alive[--kept] = -INFINITY;
        }
    }

    // Whether a sentence needs no more hypotheses after a step; says how many may end in the next one.
    bool has_enough(Tree& tree, const float* ended, int count, float alive) const {
        const int found = to.counts[tree.sentence];
        if (!to.whole_steps()) {
            tree.may_end = to.beam - found;
            return found == to.beam;
        }
        tree.best_ended = tree.best_ended || *std::max_element(ended, ended + count) >= alive;
        if (step + 1 == to.limits[tree.sentence]) {  // those that go on end, but for </s>, with this step
            tree.may_end -= (int)std::count_if(ended, ended + count, [](float v) { return std::isfinite(v); });
            return tree.may_end <= 0;
        }
        return to.early > 0 ? tree.best_ended && found >= to.early : found >= to.enough;
    }

    void add_slots() {
        const Store before = own;
        Room old_keys, old_values;
        std::swap(keys, old_keys), std::swap(values, old_values);
        own = make(slots *= 2);
        copy_store(*model.stack, own, before);
    }
};
