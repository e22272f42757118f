// Drafting and verifying: decoding/loop.py for exact decoding, in calls that go on where the last one returned.
//
// The rows of a batch advance side by side, each at its own pace. A call returns when they have ended, when a row ends
// that somebody waits for, or after a while: between two calls rows may enter, and Ctrl-C is noticed.
#pragma once

#include <unordered_map>

#include "write.h"

// What drafts a row's next tokens; the first guesses of Jacobi decoding; its blocks.
enum DraftedBy : int { NOTHING, TOKENS, GUESSES, MASKS, HEADS };
enum FirstGuess : int { OF_PAD, OF_START, OF_SOURCE, OF_NGRAMS };
enum Window : int { DOUBLING, BLOCKS, SLIDING };

// Prediction heads on the verifier's states; native/stack.py.
struct Heads {
    const Linear* inner;         // to the hidden units of all learned heads
    const Linear* const* outer;  // of all of them, or one of each
    int maps;                    // of `outer`
    int learned;                 // heads
    int identity;                // whether head 0 is none of them
    int seen;                    // whether they read the embedding of the token behind the state, too
    int activation;              // of the hidden units
};

// How a batch is drafted.
struct Drafted {
    int by;          // DraftedBy
    int joined;      // of tokens: whether the drafter writes into the verifier's cache
    int most;        // drafted tokens, at most
    int adaptive;    // whether a row's next draft is as long as the last was right, and two more
    float least;     // of tokens: a draft ends once the sum of its scores is below this
    int normalised;  // of tokens: whether these scores are log-probabilities
    int positions;   // of tokens: how many the drafter has
    int window;      // of guesses: Window
    int hybrid;      // of guesses: from this length on there are none; -1: always
    int whole;       // of guesses: whether a block is final as a whole, after a pass that changes nothing
    int first;       // of guesses: FirstGuess
    int masks;       // of masks: how many are filled at once
    int caches;      // of masks: whether the drafter's cache keeps what is written
    int64_t mask;    // of masks: the token that is one
    const Heads* heads;
    int64_t start;   // the decoder's first input
    int min_length, forced_length;  // see TokenRules
};

// A sentence that enters. Its texts are copied.
struct Entry {
    int limit;  // the position at which only </s> is allowed
    const int64_t *prefix, *given, *source;
    int prefix_length, given_length, source_length;
    int length;  // of guesses: of the first block, or where the last one ends; 0: nowhere
    int own_row, source_row;              // its places in the verifier's cache
    int draft_own_row, draft_source_row;  // and in the drafter's
};

// What a row has written.
struct Written {
    const int64_t* tokens;
    const float* scores;
    const int32_t* passes;  // x 5: where it began; drafted, accepted and committed tokens; whether the draft was given
    int length, num_passes, ended;
};

// A model in one batch; `own` may move between two calls.
struct Reader {
    const Stack* stack;
    const Linear* projection;
    const Store *own, *source;
};

// When a call returns early.
struct Until {
    int milliseconds;  // after so many
    int any;           // whether one row's end is enough
};

// The last predictions, as guesses of what follows; decoding/guesses.py.
class Guesses {
   public:
    std::vector<int64_t> tokens;
    int passes = 0;  // over the block so far

    // Guess the next `size` positions behind what is written.
    void fit(const Drafted& how, const Rules& rules, const std::vector<int64_t>& written,
             const std::vector<int64_t>& source, size_t size) {
        tokens.resize(std::min(tokens.size(), size));
        const size_t known = written.size() + tokens.size();
        if (how.first == OF_SOURCE) {
            for (size_t i = known; i < source.size() && tokens.size() < size; ++i) tokens.push_back(source[i]);
        } else if (how.first == OF_NGRAMS && known > 0) {
            const auto place = latest.find(tokens.empty() ? written.back() : tokens.back());
            if (place != latest.end()) {
                for (size_t i = place->second + 1; seen[i] != rules.pad && tokens.size() < size; ++i) {
                    tokens.push_back(seen[i]);
                }
            }
        }
        tokens.resize(size, how.first == OF_START || how.first == OF_SOURCE ? how.start : rules.pad);
    }

    // Take a pass's predictions that are not final.
    void take(const Drafted& how, const Rules& rules, const int64_t* predicted, int count, int committed) {
        tokens.assign(predicted + committed, predicted + count);
        passes = committed > 0 ? 0 : passes + 1;
        if (how.first != OF_NGRAMS) return;
        for (int i = 0; i + 1 < count; ++i) latest[predicted[i]] = seen.size() + i;
        seen.insert(seen.end(), predicted, predicted + count);
        seen.push_back(rules.pad);
    }

   private:
    std::vector<int64_t> seen;                   // the predictions of all passes, each with <pad> behind it
    std::unordered_map<int64_t, size_t> latest;  // where a token was last, with another one behind it
};

class DraftLoop {
   public:
    DraftLoop(const Drafted& how, const Rules& rules) : how(how), rules(rules) {}

    // Let a sentence enter; return its number.
    int add(const Entry& entry) {
        Row row;
        row.entry = entry;
        row.prefix.assign(entry.prefix, entry.prefix + entry.prefix_length);
        row.given.assign(entry.given, entry.given + entry.given_length);
        row.source.assign(entry.source, entry.source + entry.source_length);
        // Heads read the state of a pass, so the first one has no draft.
        row.size = how.by == HEADS ? 0 : how.most;
        rows.push_back(std::move(row));
        entering.push_back((int)rows.size() - 1);
        return entering.back();
    }

    Written written(int number) const {
        const Row& row = rows[number];
        return {row.tokens.data(), row.scores.data(), row.passes.data(), (int)row.tokens.size(),
                (int)row.passes.size() / PASS, row.ended};
    }

    // The slots that a row needs at most in this round.
    int slots() const {
        int most = 0;
        for (int number : live) {
            const Row& row = rows[number];
            int drafted = std::max(how.by == NOTHING ? 0 : how.most, (int)row.given.size());
            if (how.by == GUESSES && how.window == DOUBLING) drafted = row.entry.limit;
            most = std::max(most, std::min((int)row.tokens.size() + drafted, row.entry.limit) + 1);
            if (how.by == MASKS) most = std::max(most, (int)row.tokens.size() + how.masks);
        }
        return most;
    }

    int run(const Reader& verifier, const Reader& drafter, const Until& until, Workspace& work) {
        const Deadline deadline(until.milliseconds);
        while (true) {
            if (stage == BEFORE) {
                live.insert(live.end(), entering.begin(), entering.end());
                entering.clear();
                if (live.empty()) return ALL_ENDED;
                const int needed = slots();
                if (needed > verifier.own->slots) return NO_ROOM;
                if (drafter.own != nullptr && needed > drafter.own->slots) return NO_ROOM;
            }
            const int returned = go_on(verifier, drafter, work);
            if (returned != 0 && (returned != ONE_ENDED || (until.any && !live.empty()))) return returned;
            if (!live.empty() && deadline.is_over()) return TIME_IS_UP;
        }
    }

   private:
    static constexpr int PASS = 5;
    enum Stage { BEFORE, DRAFTING, VERIFYING };  // of a round

    struct Row {
        Entry entry;
        std::vector<int64_t> prefix, given, source;
        std::vector<int64_t> tokens;
        std::vector<float> scores;
        std::vector<int32_t> passes;
        std::vector<int64_t> draft;
        int scored = 1;         // positions of this pass
        bool is_given = false;  // whether this draft is from `given`
        size_t place = 0;       // in `given`
        int size = 0;           // of the next draft
        int read = 0, kept = 0; // of the drafter's own cache: inputs that are final; tokens in it
        Guesses guesses;
        std::vector<float> state;  // of heads: that predicted the last token
        bool ended = false;
        int room() const { return entry.limit + 1 - (int)tokens.size(); }
    };

    Drafted how;
    Rules rules;
    std::vector<Row> rows;
    Stage stage = BEFORE;
    std::vector<int> live, entering;
    std::vector<int> asked;  // rows whose drafts the drafter writes
    // Of all rows that a call reads, one after the other.
    std::vector<int64_t> inputs, forced, best;
    int most_written = 0;  // of a draft
    std::vector<int32_t> counts, starts, own_rows, source_rows, most, written_counts;
    std::vector<uint8_t> bits;
    std::vector<Before> before;  // of positions; of the rows that the drafter writes
    std::vector<float> scores;
    std::vector<size_t> read;  // numbers of states
    std::vector<float> head_inputs, hidden, outputs, states;
    Writer writer;
    Reading reading;

    // Go on with the round; return what ends the call, or 0.
    int go_on(const Reader& verifier, const Reader& drafter, Workspace& work) {
        if (stage == BEFORE) {
            if (const int problem = propose(verifier, drafter, work)) return problem;
            stage = DRAFTING;
            if (how.by == TOKENS && !asked.empty()) return 0;
        } else if (stage == DRAFTING) {
            const bool knows = writer.step(*drafter.stack, *drafter.projection, rules, *drafter.own, drafter.source, work);
            if (!knows) return NO_WORD;
            if (!writer.is_done()) return 0;
            if (const int problem = take_written()) return problem;
        } else {
            verify(verifier, work);
            if (!reading.is_done()) return 0;
            stage = BEFORE;
            return commit() ? ONE_ENDED : 0;
        }
        stage = VERIFYING;
        return list_positions(*verifier.stack) ? 0 : NO_WORD;
    }

    // The limits of one position, as TokenRules has them.
    void limit(const Row& row, int position, uint8_t& bit, int64_t& only) const {
        const int last = std::min((int)row.prefix.size(), row.entry.limit);
        only = position < last ? row.prefix[position] : rules.pad;
        // By CTranslate2's rules a text's own prefix overrides other limits; by fairseq's the batch's width does.
        const bool begins = rules.renormalised ? only != rules.pad : position < how.forced_length;
        bit = 0;
        if (!begins && position < how.min_length) bit |= NO_END;
        if (position >= row.entry.limit) bit |= ONLY_END;
        if (begins) bit |= NOT_SUPPRESSED;
    }

    // List what is before a position: what is written, and the first `drafted` tokens of the draft.
    void list_text(const Row& row, int drafted) {
        before.push_back({row.tokens.data(), row.draft.data(), (int)row.tokens.size(), drafted});
    }
    // A drafter that predicts positions at once knows the text of a row's first one; j: the position's number.
    void list_first(const Row& row, int j) {
        before.push_back(j == 0 ? Before{row.tokens.data(), nullptr, (int)row.tokens.size(), 0} : Before{});
    }

    // Where an earlier output goes on behind what is written: decoding/given.py. False: nowhere.
    bool take_up(Row& row) const {
        const auto& given = row.given;
        const size_t length = row.tokens.size();
        if (given.empty()) return false;
        if (length == 0) return row.place = 0, true;
        if (length == 1) return false;
        bool any = false;
        size_t nearest = 0, distance = 0;
        for (size_t at = 2; at < given.size(); ++at) {
            if (given[at - 2] != row.tokens[length - 2] || given[at - 1] != row.tokens[length - 1]) continue;
            const size_t away = at > row.place ? at - row.place : row.place - at;
            if (!any || away <= distance) any = true, nearest = at, distance = away;
        }
        if (any) row.place = nearest;
        return any;
    }

    int propose(const Reader& verifier, const Reader& drafter, Workspace& work) {
        asked.clear();
        for (int number : live) {
            Row& row = rows[number];
            row.draft.clear();
            // At a row's last position only </s> is allowed, so it is not drafted.
            if (take_up(row)) {
                const size_t last = std::min(row.given.size(), row.place + std::max(0, row.room() - 1));
                row.draft.assign(row.given.begin() + row.place, row.given.begin() + std::max(last, row.place));
            }
            row.is_given = !row.draft.empty();
            if (how.by == GUESSES && !row.is_given) {
                guess(row);
                continue;
            }
            if (how.by != NOTHING && !row.is_given) asked.push_back(number);
            score_all(row);
        }
        if (asked.empty()) return 0;
        if (how.by == HEADS) return ask_heads(*verifier.stack, *drafter.projection, work);
        if (how.by == MASKS) return fill_masks(drafter, work);
        begin_to_write();
        return 0;
    }

    // With a position behind the draft, but not behind </s>.
    void score_all(Row& row) const {
        row.scored = (int)row.draft.size() + (row.draft.empty() || row.draft.back() != rules.end);
    }

    // ---- Jacobi decoding: methods/jacobi.py ----

    int block_end(const Row& row) const {
        const int done = (int)row.tokens.size();
        if (how.window == DOUBLING) {
            int end = row.entry.length;
            while (end <= done) end *= 2;
            return end;
        }
        int last = how.hybrid;
        if (last >= 0 && done >= last) return done;
        const int end = how.window == SLIDING ? done + row.size : (done / how.most + 1) * how.most;
        if (row.entry.length > done) last = row.entry.length;
        return last < 0 ? end : std::min(end, last);
    }

    void guess(Row& row) const {
        const int size = std::min(block_end(row) - (int)row.tokens.size(), row.room());
        row.guesses.fit(how, rules, row.tokens, row.source, size);
        row.draft = row.guesses.tokens;
        row.scored = std::max(1, size);
        // A block of b positions has converged but for the last in its b-th pass.
        if (how.whole && row.guesses.passes + 1 == size) row.draft.pop_back();
    }

    // ---- a Transformer, token by token: decoding/assistant.py ----

    void begin_to_write() {
        size_t kept = 0;
        int width = 0, longest = 0;
        most.clear();
        for (int number : asked) {
            const Row& row = rows[number];
            const int length = (int)row.tokens.size();
            const int count = std::min({row.room() - 1, how.positions - length, row.size});
            if (count <= 0) continue;
            asked[kept++] = number;
            most.push_back(count);
            longest = std::max(longest, count);
            width = std::max(width, 1 + length - cached(row));
        }
        asked.resize(kept);
        if (asked.empty()) return;
        most_written = longest;
        const size_t all = asked.size() * longest;
        inputs.assign(asked.size() * width, rules.pad);
        counts.clear(), starts.clear(), own_rows.clear(), source_rows.clear();
        bits.resize(all), forced.resize(all), best.resize(all), scores.resize(all);
        written_counts.assign(asked.size(), 0), before.clear();
        for (size_t i = 0; i < asked.size(); ++i) {
            Row& row = rows[asked[i]];
            const int length = (int)row.tokens.size(), first = cached(row);
            for (int at = first; at <= length; ++at) inputs[i * width + at - first] = input(row, at);
            counts.push_back(1 + length - first);
            starts.push_back(first);
            list_text(row, 0);
            own_rows.push_back(how.joined ? row.entry.own_row : row.entry.draft_own_row);
            source_rows.push_back(how.joined ? row.entry.source_row : row.entry.draft_source_row);
            for (int j = 0; j < most[i]; ++j) limit(row, length + j, bits[i * longest + j], forced[i * longest + j]);
        }
        Chunk chunk{};
        chunk.rows = (int)asked.size(), chunk.width = width, chunk.tokens = inputs.data(), chunk.counts = counts.data();
        chunk.starts = starts.data(), chunk.own_rows = own_rows.data(), chunk.source_rows = source_rows.data();
        const Writing to{most.data(), longest, how.least, how.normalised, bits.data(), forced.data(), before.data(),
                         best.data(), scores.data(), written_counts.data()};
        writer.begin(to, chunk);
    }

    int take_written() {
        for (size_t i = 0; i < asked.size(); ++i) {
            Row& row = rows[asked[i]];
            const size_t from = i * most_written, until = from + written_counts[i];
            const auto is_nan = [](float score) { return score != score; };
            if (std::any_of(scores.begin() + from, scores.begin() + until, is_nan)) return DRAFTER_IS_NAN;
            row.draft.assign(best.begin() + from, best.begin() + until);
            row.read = 1 + (int)row.tokens.size();
            row.kept = row.read + written_counts[i] - 1;  // the last written token is not read
            score_all(row);
        }
        return 0;
    }

    // ---- masks behind what is written, in one pass: engine/block.py ----

    int fill_masks(const Reader& drafter, Workspace& work) {
        work.tokens.clear(), bits.clear(), forced.clear(), before.clear(), read.clear(), counts.clear();
        for (int number : asked) {
            Row& row = rows[number];
            const int length = (int)row.tokens.size(), end = length + how.masks;
            const int count = std::max(0, std::min(row.room() - 1, row.size));
            counts.push_back(count);
            if (count == 0) continue;
            for (int place = how.caches ? row.kept : 0; place < end; ++place) {
                const bool is_mask = place >= length;
                const int64_t word = is_mask ? how.mask : row.tokens[place];
                if (word < 0 || word >= drafter.stack->vocabulary) return NO_WORD;
                if (is_mask && place < length + count) {
                    read.push_back(work.tokens.size());
                    bits.emplace_back(), forced.emplace_back();
                    limit(row, place, bits.back(), forced.back());
                    list_first(row, place - length);
                }
                const Seen seen{is_mask || !how.caches ? end : place + 1};
                const int own = row.entry.draft_own_row, source = row.entry.draft_source_row;
                work.tokens.push_back({word, own, source, place, place, seen, work.tokens.size()});
            }
            row.kept = length;
        }
        if (read.empty()) return 0;
        const size_t stride = padded(drafter.stack->dim);
        float* x = grown(work.states, work.tokens.size() * stride);
        embed(*drafter.stack, work.tokens, x);
        ::run(*drafter.stack, *drafter.own, drafter.source, x, work);
        for (size_t i = 0; i < read.size(); ++i) std::memmove(x + i * stride, x + read[i] * stride, stride * sizeof(float));
        return take_best(*drafter.projection, x, (int)stride, work);
    }

    // Draft the best tokens of states: of each row that is asked, as many as `counts` says.
    int take_best(const Linear& projection, const float* x, int stride, Workspace& work) {
        const size_t all = bits.size();
        best.resize(all), scores.resize(all);
        Choices choices{};
        choices.limits = bits.data(), choices.forced = forced.data(), choices.before = before.data();
        choices.best = best.data(), choices.score = scores.data(), choices.count = 1;
        choose(projection, rules, choices, x, stride, (int)all, work);
        const auto is_nan = [](float score) { return score != score; };
        if (std::any_of(scores.begin(), scores.end(), is_nan)) return DRAFTER_IS_NAN;
        const int64_t* filled = best.data();
        for (size_t i = 0; i < asked.size(); filled += counts[i++]) {
            Row& row = rows[asked[i]];
            const int64_t* last = std::find(filled, filled + counts[i], rules.end);
            row.draft.assign(filled, std::min(last + 1, filled + counts[i]));
            score_all(row);
        }
        return 0;
    }

    // ---- heads on the state that predicted the last token: methods/blockwise.py ----

    int ask_heads(const Stack& stack, const Linear& projection, Workspace& work) {
        const Heads& heads = *how.heads;
        const size_t dim = stack.dim, wide = dim + (heads.seen ? dim : 0), all = heads.learned * dim;
        size_t kept = 0;
        counts.clear(), bits.clear(), forced.clear(), before.clear(), work.tokens.clear();
        for (int number : asked) {
            const Row& row = rows[number];
            const int count = std::min(row.room() - 1, row.size);
            if (count <= 0) continue;
            asked[kept++] = number;
            counts.push_back(count);
            const int length = (int)row.tokens.size();
            work.tokens.push_back({row.tokens.back(), 0, 0, 0, 0, {}, 0});
            for (int j = 0; j < count; ++j) {
                bits.emplace_back(), forced.emplace_back();
                limit(row, length + j, bits.back(), forced.back());
                list_first(row, j);
            }
        }
        asked.resize(kept);
        if (kept == 0) return 0;
        float* x = grown(head_inputs, kept * wide);
        for (size_t i = 0; i < kept; ++i) {
            std::copy_n(rows[asked[i]].state.begin(), dim, x + i * wide);
            if (!heads.seen) continue;
            const float* word = stack.embedding + (size_t)work.tokens[i].word * padded(stack.dim);
            for (size_t d = 0; d < dim; ++d) x[i * wide + dim + d] = stack.embedding_scale * word[d];
        }
        const int units = heads.inner->outputs;
        float* inside = grown(hidden, kept * units);
        multiply(*heads.inner, x, (int)wide, (int)kept, {inside, units, nullptr, (Activation)heads.activation}, work);
        float* out = grown(outputs, kept * all);
        for (int m = 0; m < heads.maps; ++m) {
            multiply(*heads.outer[m], inside + m * (units / heads.maps), units, (int)kept,
                     {out + m * (all / heads.maps), (int)all}, work);
        }
        float* states = grown(work.states, bits.size() * dim);
        float* to = states;
        for (size_t i = 0; i < kept; ++i) {
            const float* own = out + i * all + (heads.identity ? 0 : dim);
            const std::vector<float>& state = rows[asked[i]].state;
            for (size_t d = 0; d < counts[i] * dim; ++d) *to++ = own[d] + state[d % dim];
        }
        return take_best(projection, states, (int)dim, work);
    }

    int cached(const Row& row) const { return how.joined ? (int)row.tokens.size() : row.kept; }

    // The decoder's input at a position.
    int64_t input(const Row& row, int at) const { return at == 0 ? how.start : row.tokens[at - 1]; }

    // ---- one pass over all rows, and what is accepted ----

    // False: a token is outside the vocabulary.
    bool list_positions(const Stack& stack) {
        reading.clear(), bits.clear(), forced.clear(), before.clear();
        for (int number : live) {
            const Row& row = rows[number];
            const int length = (int)row.tokens.size();
            for (int j = 0; j < row.scored; ++j) {
                const int64_t word = j == 0 ? input(row, length) : row.draft[j - 1];
                if (word < 0 || word >= stack.vocabulary) return false;
                const int place = length + j, own = row.entry.own_row, source = row.entry.source_row;
                reading.tokens.push_back({word, own, source, place, place, {place + 1}, reading.tokens.size()});
                bits.emplace_back(), forced.emplace_back();
                limit(row, place, bits.back(), forced.back());
                list_text(row, j);
            }
        }
        best.resize(bits.size()), scores.resize(bits.size());
        return true;
    }

    void verify(const Reader& verifier, Workspace& work) {
        Choices choices{};
        choices.limits = bits.data(), choices.forced = forced.data(), choices.before = before.data();
        choices.best = best.data(), choices.score = scores.data();
        choices.normalised = 1, choices.count = 1;
        const size_t first = reading.done, stride = padded(verifier.stack->dim);
        const float* x = read_part(*verifier.stack, *verifier.projection, rules, choices, *verifier.own, verifier.source, reading, work);
        if (how.by != HEADS) return;
        states.resize(bits.size() * stride);
        std::copy_n(x, (reading.done - first) * stride, states.begin() + first * stride);
        if (reading.is_done()) keep_states((int)stride, verifier.stack->dim);
    }

    // How many drafted tokens the verifier predicts, too.
    static int accepted(const Row& row, const int64_t* predicted) {
        const int most = std::min((int)row.draft.size(), row.scored);
        return (int)(std::mismatch(row.draft.begin(), row.draft.begin() + most, predicted).first - row.draft.begin());
    }

    // Keep each row's state behind the accepted tokens. A row that ends with a drafted </s> may have none.
    void keep_states(int stride, int dim) {
        const int64_t* predicted = best.data();
        const float* x = states.data();
        for (int number : live) {
            Row& row = rows[number];
            const float* last = x + (size_t)std::min(accepted(row, predicted), row.scored - 1) * stride;
            row.state.assign(last, last + dim);
            predicted += row.scored, x += (size_t)row.scored * stride;
        }
    }

    // Accept what the verifier predicts too, and commit; return whether a row has ended.
    bool commit() {
        const int64_t* predicted = best.data();
        const float* score = scores.data();
        size_t stay = 0;
        for (int number : live) {
            Row& row = rows[number];
            const int drafted = (int)row.draft.size(), scored = row.scored;
            const int right = accepted(row, predicted);
            int committed = std::min(right + 1, scored);
            if (how.by == GUESSES && how.whole) committed = right == drafted ? scored : 0;
            const bool first = row.passes.empty();
            row.passes.insert(row.passes.end(), {(int32_t)row.tokens.size(), drafted, right, committed, row.is_given});
            if (how.by == TOKENS && !row.is_given && drafted > 0) row.kept = std::min(row.kept, row.read + right);
            row.place += committed;
            if (how.by == HEADS && first) {
                row.size = how.most;
            } else if (how.adaptive && !row.is_given) {
                row.size = std::min(how.most, right + 2);
            }
            if (how.by == GUESSES) row.guesses.take(how, rules, predicted, scored, committed);
            for (int j = 0; j < committed && !row.ended; ++j) {
                row.tokens.push_back(predicted[j]);
                row.scores.push_back(score[j]);
                row.ended = predicted[j] == rules.end;
            }
            predicted += scored, score += scored;
            if (!row.ended) live[stay++] = number;
        }
        const bool any = stay < live.size();
        live.resize(stay);
        return any;
    }
};
