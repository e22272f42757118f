// Threads that share the work of one calling thread.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

// Tell the processor that a thread waits for a number to change.
inline void pause_shortly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A thread and its helpers: each takes the same part of every job, so that what it has read stays in its cache. The
// caller also does the parts of helpers that are late. A helper waits awake for a moment, then asleep.
class Pool {
   public:
    explicit Pool(int threads) : wanted(threads), parts(threads), process(getpid()) {
        helpers.reserve(threads);
        // Signals are for the threads that others made. On Linux the mask is the calling thread's.
        sigset_t all, before;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before);
        try {
            for (int part = 1; part < threads; ++part) helpers.emplace_back([this, part] { help(part); });
        } catch (const std::exception&) {  // there are no more threads, or no memory: the caller does their parts
        }
        sigprocmask(SIG_SETMASK, &before, nullptr);
    }

    ~Pool() {
        ending = true;
        publish();
        for (std::thread& helper : helpers) helper.join();
    }

    const int wanted;  // threads, with the caller

    // Whether its helpers are in this process, and not in the one that it was forked from.
    bool is_here() const { return process == getpid(); }

    // Call `task(part)` for each part, and return when all are done. Tasks throw nothing.
    template <class Task>
    void run(const Task& task) {
        call = [](const void* of, int part) { (*(const Task*)of)(part); };
        object = &task;
        left.store(wanted, std::memory_order_relaxed);
        const unsigned long job = publish();
        do_part(0, job);
        for (int part = 1; part < wanted; ++part) do_part(part, job);
        for (auto start = Clock::now(); left.load(std::memory_order_acquire) > 0;) {
            if (Clock::now() - start > AWAKE) std::this_thread::yield();
            pause_shortly();
        }
    }

   private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds AWAKE{50};
    // The last job of which somebody has taken a part, each number in a cache line of its own.
    struct alignas(64) Part {
        std::atomic<unsigned long> taken{0};
    };

    void (*call)(const void*, int) = nullptr;
    const void* object = nullptr;
    std::atomic<bool> ending{false};
    alignas(64) std::atomic<unsigned long> jobs{0};
    alignas(64) std::atomic<int> left{0};
    std::atomic<int> asleep{0};
    std::vector<Part> parts;
    // The C library's own: std::condition_variable waits by a function that GCC 12 and later take from libstdc++, and
    // older ones lack.
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t more = PTHREAD_COND_INITIALIZER;
    std::vector<std::thread> helpers;
    const pid_t process;

    unsigned long publish() {
        const unsigned long job = jobs.fetch_add(1) + 1;
        if (asleep.load() > 0) {
            pthread_mutex_lock(&mutex);  // who falls asleep is asleep by now, or sees the job
            pthread_mutex_unlock(&mutex);
            pthread_cond_broadcast(&more);
        }
        return job;
    }

    // Do a part of a job that nobody has taken. Until its parts are done a job's task stays what it is.
    void do_part(int part, unsigned long job) {
        unsigned long before = job - 1;
        if (!parts[part].taken.compare_exchange_strong(before, job, std::memory_order_acq_rel)) return;
        call(object, part);
        left.fetch_sub(1, std::memory_order_acq_rel);
    }

    void help(int part) {
        for (unsigned long done = 0;;) {
            const auto start = Clock::now();
            while (jobs.load(std::memory_order_acquire) == done && Clock::now() - start < AWAKE) pause_shortly();
            if (jobs.load() == done) {
                pthread_mutex_lock(&mutex);
                ++asleep;
                while (jobs.load() == done) pthread_cond_wait(&more, &mutex);
                --asleep;
                pthread_mutex_unlock(&mutex);
            }
            done = jobs.load();
            if (ending) return;
            do_part(part, done);
        }
    }
};

// The calling thread's pool. A fork's child has lost its helpers and makes them anew: what its parent knew of them
// cannot be ended there, and stays.
inline Pool& pool_of(int threads) {
    struct Kept {
        std::unique_ptr<Pool> pool;
        void leave() {
            if (pool != nullptr && !pool->is_here()) pool.release();
        }
        ~Kept() { leave(); }
    };
    thread_local Kept kept;
    kept.leave();
    if (kept.pool == nullptr || kept.pool->wanted != threads) {
        kept.pool.reset();
        kept.pool = std::make_unique<Pool>(threads);
    }
    return *kept.pool;
}

// Call `task(i, part)` for 0 <= i < count, on several threads if the work is large enough; `part`: of threads.
template <class Task>
inline void for_each(int threads, int count, bool pays, const Task& task) {
    if (!pays || threads == 1) {
        for (int i = 0; i < count; ++i) task(i, 0);
        return;
    }
    pool_of(threads).run([&](int part) {
        const int end = (int)((long)count * (part + 1) / threads);
        for (int i = (int)((long)count * part / threads); i < end; ++i) task(i, part);
    });
}
