// The vocabulary: scores of all tokens, fairseq's limits on them, and the choices.
#pragma once

#include "stack.h"

// The rules of the search that hold everywhere; see TokenRules.
struct Rules {
    int64_t pad, unknown, end;
    int64_t first;  // read before a text, if has_first
    float unknown_penalty, temperature;
    float penalty;  // of tokens that a text has; 1: none
    int of_logits;  // whether the penalty is of logits; else of log-probabilities
    const int64_t* suppressed;
    const int64_t* sequences;       // one behind the other; the last token of each may not complete it
    const int32_t* sequence_sizes;  // at least 1
    int num_suppressed, num_sequences;
    int ngram;
    int has_first;
    int renormalised;  // whether log-probabilities are of the allowed tokens; else of all
    bool read_texts() const { return ngram > 0 || penalty != 1 || num_sequences > 0; }
};

// The tokens before a position: a text, and what follows it.
struct Before {
    const int64_t *text, *more;
    int length, more_length;
    int count() const { return length + more_length; }
    int64_t at(int i) const { return i < length ? text[i] : more[i - length]; }
};

// A text as rules read it.
struct Read {
    const Rules& rules;
    const Before& before;
    int count() const { return rules.has_first + before.count(); }
    int64_t at(int i) const { return i < rules.has_first ? rules.first : before.at(i - rules.has_first); }
};

// Call with each token that would repeat an n-gram behind a text.
template <class Take>
inline void find_repeats(const Read& text, int size, const Take& take) {
    const int same = size - 1, last = text.count() - same;
    for (int first = 0; first < last; ++first) {
        int i = 0;
        while (i < same && text.at(first + i) == text.at(last + i)) ++i;
        if (i == same) take(text.at(first + same));
    }
}

// Call with each token that would complete a forbidden sequence behind a text.
template <class Take>
inline void find_completed(const Read& text, const Take& take) {
    const int64_t* sequence = text.rules.sequences;
    for (int s = 0; s < text.rules.num_sequences; ++s) {
        const int same = text.rules.sequence_sizes[s] - 1, last = text.count() - same;
        int i = 0;
        while (last >= 0 && i < same && text.at(last + i) == sequence[i]) ++i;
        if (i == same) take(sequence[same]);
        sequence += same + 1;
    }
}

// Lower the scores of a text's tokens, each once however often it is there; `offset` is taken off before.
inline void penalise(const Read& text, float* y, int count, float offset) {
    static thread_local std::vector<float> lowered;
    const float by = text.rules.penalty;
    lowered.resize(text.count());
    const auto each = [&](const auto& take) {
        for (int i = 0; i < text.count(); ++i) {
            if (text.at(i) < count) take(lowered[i], y[text.at(i)]);
        }
    };
    each([&](float& to, float score) {
        score -= offset;
        to = (score < 0 ? score * by : score / by) + offset;
    });
    each([](float from, float& score) { score = from; });
}

// Limits of one position, as bits.
enum : uint8_t { NO_END = 1, ONLY_END = 2, NOT_SUPPRESSED = 4 };

// Inputs and outputs of N positions; null: not given, or not wanted.
struct Choices {
    const uint8_t* limits;  // N
    const int64_t* forced;  // N, the only token allowed; <pad>: any
    const Before* before;   // N, read if the rules read texts; null: they do not
    const int64_t* drafted;
    int64_t* best;          // N x count, the best tokens, the best first
    float* score;           // N x count, their log-probabilities, or unnormalised scores
    float* drafted_score;
    int64_t* drafted_rank;  // N, the number of tokens that score higher than the drafted one; null: not wanted
    int normalised;         // whether scores are log-probabilities
    int count;              // tokens of `best`
};

// The largest of `count` scores (whole vectors).
inline float peak_of_all(const float* scores, int count) {
    vfloat top = load(scores);
    for (int i = LANES; i < count; i += LANES) top = larger(load(scores + i), top);
    return largest(top);
}

// The index of the first largest of `count` scores (whole vectors). With `odd` some may be NaN: as in
// torch, the first NaN is the largest.
inline int64_t first_largest(const float* scores, int count, bool odd) {
    for (int i = 0; odd && i < count; ++i) {
        if (scores[i] != scores[i]) return i;
    }
    const float best = peak_of_all(scores, count);
    for (int i = 0; i < count; i += LANES) {
        const vint same = load(scores + i) == splat(best);
        for (int j = 0; j < LANES; ++j) {
            if (same[j]) return i + j;
        }
    }
    return 0;
}

// The log of the sum of e^score; NaN if a score is NaN.
inline float log_sum(const float* scores, int count) {
    const float peak = peak_of_all(scores, count);
    vfloat total{};
    for (int i = 0; i < count; i += LANES) total += exp(load(scores + i) - peak);
    return peak + std::log(sum(total));
}

// 0, or NaN if a score is NaN.
inline float nan_among(const float* scores, int count) {
    vint odd{};
    for (int i = 0; i < count; i += LANES) {
        const vfloat y = load(scores + i);
        odd |= y != y;
    }
    int any = 0;
    for (int j = 0; j < LANES; ++j) any |= odd[j];
    return any ? NAN : 0;
}

// Find the largest of `width` scores one after the other; each becomes -inf. They are searched in parts
// whose largest is known.
inline void find_few(float* y, int width, int count, float offset, int64_t* best, float* score) {
    constexpr int PARTS = 64;
    const int size = padded((width + PARTS - 1) / PARTS), parts = (width + size - 1) / size;
    float tops[PARTS];
    const auto look = [&](int part) {
        tops[part] = peak_of_all(y + part * size, std::min(size, width - part * size));
    };
    for (int part = 0; part < parts; ++part) look(part);
    for (int n = 0; n < count; ++n) {
        const int part = (int)(std::max_element(tops, tops + parts) - tops), first = part * size;
        const int64_t found = first + first_largest(y + first, std::min(size, width - first), false);
        best[n] = found;
        score[n] = y[found] - offset;
        y[found] = -INFINITY;
        look(part);
    }
}

// Choose at one position; y: `width` scores, -inf after the vocabulary's `count`.
inline void choose_one(const Rules& rules, const Choices& to, int i, float* y, int count, int width) {
    if (rules.temperature != 1) {
        for (int v = 0; v < width; v += LANES) store(y + v, load(y + v) / rules.temperature);
    }
    const bool penalises = rules.penalty != 1, needs_sum = penalises && !rules.of_logits;
    const Before nothing{};
    const Read text{rules, to.before == nullptr ? nothing : to.before[i]};
    if (penalises && rules.of_logits) penalise(text, y, count, 0);
    const auto offset_of = [&] { return to.normalised || needs_sum ? log_sum(y, width) : nan_among(y, width); };
    float offset = rules.renormalised && !needs_sum ? 0 : offset_of();
    if (needs_sum) penalise(text, y, count, offset);
    const auto forbid = [&](int64_t token) {
        if (token < count) y[token] = -INFINITY;
    };
    const auto only = [&](int64_t token) {
        const float kept = token < count ? y[token] : -INFINITY;
        std::fill(y, y + width, -INFINITY);
        if (token < count) y[token] = kept;
    };
    const uint8_t limits = to.limits == nullptr ? 0 : to.limits[i];
    const bool is_forced = to.forced != nullptr && to.forced[i] != rules.pad;
    forbid(rules.pad);
    const bool is_told = rules.renormalised && is_forced;  // by CTranslate2's rules, which forbid no <unk> there
    if (rules.unknown < count && !is_told) y[rules.unknown] -= rules.unknown_penalty;
    if (limits & NO_END) forbid(rules.end);
    if (is_forced) only(to.forced[i]);
    if (limits & ONLY_END) only(rules.end);
    if (!is_forced && !(limits & ONLY_END)) {
        if (rules.ngram > 0) find_repeats(text, rules.ngram, forbid);
        find_completed(text, forbid);
    }
    if (!(limits & NOT_SUPPRESSED)) {
        for (int s = 0; s < rules.num_suppressed; ++s) forbid(rules.suppressed[s]);
    }
    if (rules.renormalised) offset = offset_of();
    if (to.drafted != nullptr) {
        const int64_t token = to.drafted[i];
        const float score = token < count ? y[token] : -INFINITY;
        to.drafted_score[i] = score - offset;
        if (to.drafted_rank != nullptr) {
            vint lower{};  // -1 for each
            for (int v = 0; v < width; v += LANES) lower += load(y + v) > splat(score);
            int64_t higher = 0;
            for (int j = 0; j < LANES; ++j) higher -= lower[j];
            to.drafted_rank[i] = higher;
        }
    }
    if (to.count > 1) {
        const size_t at = (size_t)i * to.count;
        find_few(y, width, to.count, offset, to.best + at, to.score + at);
        return;
    }
    to.best[i] = first_largest(y, width, offset != offset);
    to.score[i] = y[to.best[i]] - offset;
}

// The choices of positions from the i-th on.
inline Choices behind(Choices choices, size_t i) {
    const auto move = [](auto*& pointer, size_t by) {
        if (pointer != nullptr) pointer += by;
    };
    move(choices.limits, i), move(choices.forced, i), move(choices.before, i), move(choices.drafted, i);
    move(choices.best, i * choices.count), move(choices.score, i * choices.count);
    move(choices.drafted_score, i), move(choices.drafted_rank, i);
    return choices;
}

// Project N hidden states, rows of `stride` numbers, and choose at each.
inline void choose(const Linear& projection, const Rules& rules, const Choices& to, const float* hidden,
                   int stride, int rows, Workspace& work) {
    // A few rows at a time, so that their scores stay in the CPU cache.
    const int width = projection.width(), outputs = projection.outputs;
    const int most = takes_tiles(projection.form, rows) ? 64 : 4 * BLOCK;
    float* scores = grown(work.logits, (size_t)std::min(rows, most) * width);
    for (int first = 0; first < rows; first += most) {
        const int count = std::min(most, rows - first);
        multiply(projection, hidden + (size_t)first * stride, stride, count, {scores, width}, work);
        for_each(work.threads, count, (long)count * width > SERIAL / 4, [&](int i, int) {
            float* y = scores + (size_t)i * width;
            std::fill(y + outputs, y + width, -INFINITY);
            choose_one(rules, to, first + i, y, outputs, width);
        });
    }
}
