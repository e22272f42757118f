// Beam search whose next steps are drafted and verified in one pass: decoding/beam_drafts.py, in calls that go on
// where the last one returned.
//
// The hypotheses of a sentence are paths of one tree. Its nodes lie in one row of a model's cache, in any slots.
#pragma once

#include <numeric>

#include "search.h"

// How a search is drafted, and what its passes did.
struct Drafting {
    int depth;        // steps of a draft, at most
    int joined;       // whether the drafter writes into the verifier's cache
    int32_t* rounds;  // sentences x most x 4: steps before a pass, drafted, taken; nodes that it read
};

// A sentence's tree. Node 0 is the decoder's first input.
struct Branching {
    std::vector<int64_t> tokens;
    std::vector<float> scores;                      // of the tokens, once a hypothesis has gone there
    std::vector<int> parents, depths, first, next;  // first: of a node's children; next: of the same parent
    std::vector<uint8_t> known;                     // whether the model has read a node
    // The words that hypotheses may go on with behind nodes: the model's, of what it has read; else the drafter's.
    std::vector<int> places, free;  // of each node, where they are, or -1: no hypothesis comes there again
    std::vector<int64_t> words;     // places x candidates
    std::vector<float> word_scores, ends;

    int add(int parent, int64_t token, int each) {
        const int node = (int)tokens.size();
        tokens.push_back(token), parents.push_back(parent), depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
        first.push_back(-1), next.push_back(-1), known.push_back(0), scores.push_back(0);
        if (parent >= 0) next[node] = first[parent], first[parent] = node;
        if (free.empty()) {
            free.push_back((int)ends.size());
            words.resize(words.size() + each), word_scores.resize(word_scores.size() + each);
            ends.push_back(0);
        }
        places.push_back(free.back());
        free.pop_back();
        return node;
    }
    int child(int parent, int64_t token, int each) {
        for (int node = first[parent]; node >= 0; node = next[node]) {
            if (tokens[node] == token) return node;
        }
        return add(parent, token, each);
    }
    void forget_words(int node) {
        if (places[node] < 0) return;
        free.push_back(places[node]);
        places[node] = -1;
    }
};

// The live hypotheses of a sentence between two steps.
struct Live {
    std::vector<int> nodes;
    std::vector<float> totals;
    int written = 0, finished = 0;
    bool ends = false;
};

// A model's cache: of each sentence, the slot of each node, or -1, and the free slots.
struct Slots {
    Store store{};
    std::vector<std::vector<int32_t>> of, free;
};

class DraftedSearch : public Resumable {
   public:
    DraftedSearch(const Searcher& verifier, const Searcher& drafter, const Rules& rules, const Search& to,
                  const Drafting& how)
        : Resumable(rules, to), verifier(verifier), drafter(drafter), how(how),
          trees(to.sentences), live(to.sentences), wanted(to.sentences) {
        for (int s = 0; s < to.sentences; ++s) {
            live[s].nodes = {trees[s].add(-1, to.starts[0], to.candidates)};
            live[s].totals = {0};
        }
        for (int m = 0; m < 2; ++m) {
            slots[m].of.resize(to.sentences), slots[m].free.resize(to.sentences);
        }
        // A draft ends with the search, which takes at most `most` steps.
        const int first = (std::min(how.depth, to.most) + 1) * to.beam + 16;
        grow(VERIFIER, first);
        if (!how.joined) grow(DRAFTER, first);
    }

   protected:
    bool is_done() const override {
        return std::all_of(live.begin(), live.end(), [](const Live& beam) { return beam.ends; });
    }

    bool go_on(Workspace& work) override {
        if (ahead.empty()) {
            begin_round();
            return list_level();
        }
        if (!reading.is_done()) {
            const Store& own = slots[place(reader)].store;
            read_part(*model(reader).stack, *model(reader).projection, rules, choices(), own, model(reader).source, reading, work);
            if (!reading.is_done()) return true;
            keep_words();
        }
        if (reader == VERIFIER) {
            replay();
            begin_round();
        } else {
            for (int s = 0; s < to.sentences; ++s) {
                if (!ahead[s].ends) step(s, ahead[s], false);
            }
            ++level;
        }
        return list_level();
    }

   private:
    enum Model { VERIFIER, DRAFTER };

    const Searcher verifier, drafter;
    const Drafting how;
    Model reader = DRAFTER;  // of the pass that is read
    int level = 0;           // steps of the draft
    std::vector<Branching> trees;
    std::vector<Live> live, ahead;                 // ahead: behind the draft; none before the first round
    std::vector<std::vector<int>> wanted, unread;  // nodes that a pass reads, and those of the round
    Slots slots[2];
    Room keys[2], values[2];
    std::vector<std::pair<int, int>> read;  // of each that a pass reads, sentence and node
    std::vector<int32_t> paths;
    std::vector<int64_t> parents, next;
    std::vector<float> reached, next_scores;
    std::vector<uint8_t> needed;

    const Searcher& model(Model m) const { return m == VERIFIER ? verifier : drafter; }
    Model place(Model m) const { return how.joined ? VERIFIER : m; }  // whose cache it reads

    // Let each row of a cache have so many slots.
    void grow(Model m, int count) {
        const Stack& stack = *model(m).stack;
        const Store before = slots[m].store;
        const size_t room = stack.layers.size() * to.sentences * stack.heads * stack.head_size * count;
        Room old_keys, old_values;
        std::swap(keys[m], old_keys), std::swap(values[m], old_values);
        slots[m].store = {keys[m].of(room), values[m].of(room), (int)stack.layers.size(), to.sentences, count, nullptr};
        if (before.slots > 0) copy_store(stack, slots[m].store, before);
        for (auto& free : slots[m].free) {
            std::vector<int32_t> more(count - before.slots);
            std::iota(more.begin(), more.end(), before.slots);
            free.insert(free.begin(), more.begin(), more.end());
        }
    }

    int32_t take(Model m, int s) {
        if (slots[m].free[s].empty()) grow(m, 2 * slots[m].store.slots);
        const int32_t slot = slots[m].free[s].back();
        slots[m].free[s].pop_back();
        return slot;
    }

    // List the wanted nodes, and what a drafter of its own lacks of the paths to them, for one pass.
    bool list_nodes(Model m) {
        const Stack& stack = *model(m).stack;
        reader = m;
        reading.clear(), read.clear(), bits.clear(), forced.clear(), before.clear();
        size_t room = 0;
        for (int s = 0; s < to.sentences; ++s) {
            const Branching& tree = trees[s];
            auto& own = slots[place(m)].of[s];
            own.resize(tree.tokens.size(), -1);
            const size_t begin = read.size();
            for (int node : wanted[s]) {
                for (int n = node; n >= 0 && (n == node || own[n] < 0); n = tree.parents[n]) {
                    read.emplace_back(s, n);
                    if (own[n] < 0) own[n] = take(place(m), s);
                }
            }
            // A parent, which has the smaller number, comes before its children, and each node once.
            std::sort(read.begin() + begin, read.end());
            read.erase(std::unique(read.begin() + begin, read.end()), read.end());
            for (size_t i = begin; i < read.size(); ++i) room += tree.depths[read[i].second] + 1;
        }
        paths.resize(room), texts.resize(room);
        int32_t* path = paths.data();
        int64_t* text = texts.data();
        for (const auto& [s, node] : read) {
            const Branching& tree = trees[s];
            const int depth = tree.depths[node];
            const auto& own = slots[place(m)].of[s];
            for (int n = node; n >= 0; n = tree.parents[n]) path[tree.depths[n]] = own[n];
            const int64_t word = tree.tokens[node];
            if (word < 0 || word >= stack.vocabulary) return false;
            reading.tokens.push_back({word, s, s, own[node], depth, {0, nullptr, path, depth + 1}, reading.tokens.size()});
            path += depth + 1;
            // Node 0 is the decoder's first input, which is no text.
            for (int n = node; n > 0; n = tree.parents[n]) text[tree.depths[n] - 1] = tree.tokens[n];
            before.push_back({text, nullptr, depth, 0});
            text += depth;
            const size_t at = (size_t)s * to.most + depth;
            bits.push_back(to.bits == nullptr ? 0 : to.bits[at]);
            forced.push_back(to.forced == nullptr ? rules.pad : to.forced[at]);
        }
        const size_t rows = read.size(), K = to.candidates;
        best.resize(rows * K), scores.resize(rows * K), end_scores.resize(rows);
        ends.assign(rows, rules.end);
        return true;
    }

    void keep_words() {
        const int K = to.candidates;
        for (size_t i = 0; i < read.size(); ++i) {
            const auto [s, node] = read[i];
            Branching& tree = trees[s];
            if (reader == DRAFTER && tree.known[node]) continue;
            const size_t place = tree.places[node];
            std::copy_n(best.begin() + i * K, K, tree.words.begin() + place * K);
            std::copy_n(scores.begin() + i * K, K, tree.word_scores.begin() + place * K);
            tree.ends[place] = end_scores[i];
            if (reader == VERIFIER) tree.known[node] = 1;
        }
    }

    // Extend a sentence's hypotheses by a step; `real`: those that end are finished.
    void step(int s, Live& beam, bool real) {
        Branching& tree = trees[s];
        const int K = to.candidates, B = to.beam, W = (int)beam.nodes.size();
        best.resize((size_t)W * K), scores.resize((size_t)W * K), end_scores.resize(W);
        for (int w = 0; w < W; ++w) {
            const size_t place = tree.places[beam.nodes[w]];
            std::copy_n(tree.words.begin() + place * K, K, best.begin() + (size_t)w * K);
            std::copy_n(tree.word_scores.begin() + place * K, K, scores.begin() + (size_t)w * K);
            end_scores[w] = tree.ends[place];
        }
        const int kept = std::min(B, W * std::min(B, K)), most = B + kept;
        parents.resize(most), next.resize(most), reached.resize(most), next_scores.resize(most);
        const Step given{1, W, 1, K, B, kept, rules.end, beam.totals.data(), best.data(), scores.data(), end_scores.data()};
        const Extended ended{reached.data(), parents.data(), next.data(), next_scores.data()};
        const Extended alive{reached.data() + B, parents.data() + B, next.data() + B, next_scores.data() + B};
        extend(given, ended, alive);
        for (int e = 0; e < B && beam.finished < B; ++e) {
            if (!std::isfinite(reached[e])) continue;
            ++beam.finished;
            if (real) finish(s, beam.nodes[parents[e]], reached[e], next_scores[e]);
        }
        std::vector<int> nodes;
        beam.totals.clear();
        for (int a = B; a < most; ++a) {
            if (!std::isfinite(reached[a])) continue;
            nodes.push_back(tree.child(beam.nodes[parents[a]], next[a], K));
            if (real) tree.scores[nodes.back()] = next_scores[a];
            beam.totals.push_back(reached[a]);
        }
        beam.nodes.swap(nodes);
        ++beam.written;
        beam.ends = beam.finished == B || beam.written > to.limits[s] || beam.nodes.empty();
    }

    // Keep the text of a hypothesis that ends behind a node.
    void finish(int s, int node, float total, float end_score) {
        const Branching& tree = trees[s];
        const size_t at = (size_t)s * to.beam + to.counts[s]++;
        to.lengths[at] = tree.depths[node] + 1;
        to.totals[at] = total;
        int64_t word = rules.end;
        float score = end_score;
        for (; node >= 0; word = tree.tokens[node], score = tree.scores[node], node = tree.parents[node]) {
            const size_t where = at * to.most + tree.depths[node];
            to.words[where] = word, to.scores[where] = score;
        }
    }

    // Free the slots of nodes that are neither on the way to a live hypothesis nor behind one, and the words of all that
    // are behind none.
    void free_slots(Model m, int s) {
        Branching& tree = trees[s];
        auto& own = slots[m].of[s];
        own.resize(tree.tokens.size(), -1);
        needed.assign(tree.tokens.size(), 0);
        for (int node : live[s].nodes) needed[node] = 1;
        for (size_t node = 1; node < needed.size(); ++node) needed[node] |= needed[tree.parents[node]];
        for (size_t node = 0; node < needed.size(); ++node) {
            if (!needed[node]) tree.forget_words((int)node);
        }
        for (int node : live[s].nodes) {
            for (int n = tree.parents[node]; n >= 0 && !needed[n]; n = tree.parents[n]) needed[n] = 1;
        }
        for (size_t node = 0; node < own.size(); ++node) {
            if (own[node] < 0 || needed[node]) continue;
            slots[m].free[s].push_back(own[node]);
            own[node] = -1;
        }
    }

    void begin_round() {
        ahead = live, level = 0, reader = DRAFTER;
        unread.assign(to.sentences, {});
    }

    // Draft the nodes of live hypotheses that the model has not read, level by level; then verify all of them.
    bool list_level() {
        bool goes_on = false;
        for (int s = 0; s < to.sentences; ++s) {
            wanted[s].clear();
            if (ahead[s].ends) continue;
            goes_on = true;
            for (int node : ahead[s].nodes) {
                if (!trees[s].known[node]) wanted[s].push_back(node);
            }
            unread[s].insert(unread[s].end(), wanted[s].begin(), wanted[s].end());
        }
        if (level < how.depth && goes_on) return list_nodes(DRAFTER);
        wanted = unread;
        return list_nodes(VERIFIER);
    }

    // Replay, as long as the model has read all live hypotheses.
    void replay() {
        for (int s = 0; s < to.sentences; ++s) {
            Live& beam = live[s];
            if (beam.ends) continue;
            const int start = beam.written;
            const auto known = [&](int node) { return trees[s].known[node] != 0; };
            while (!beam.ends && std::all_of(beam.nodes.begin(), beam.nodes.end(), known)) step(s, beam, true);
            int32_t* fact = how.rounds + ((size_t)s * to.most + to.passes[s]++) * 4;
            fact[0] = start, fact[1] = ahead[s].written - start, fact[2] = beam.written - start;
            fact[3] = (int32_t)unread[s].size();
            free_slots(VERIFIER, s);
            if (!how.joined) free_slots(DRAFTER, s);
        }
    }
};
