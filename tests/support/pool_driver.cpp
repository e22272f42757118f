// Two threads that share their work with helpers, in turns of odd sizes; then a fork's child does.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "pool.h"

// Every number is counted once, whatever the threads; helpers fall asleep between some jobs.
static bool counts_are_right(unsigned turn) {
    std::vector<int> counted(300), parts(300);
    for (int job = 0; job < 3000; ++job) {
        const int threads = 1 + (int)(turn + job / 500) % 4, count = (int)(job * 7 + turn) % 300;
        counted.assign(counted.size(), 0);
        for_each(threads, count, job % 11 != 0, [&](int i, int part) { ++counted[i], parts[i] = part; });
        for (int i = 0; i < (int)counted.size(); ++i) {
            if (counted[i] != (i < count) || (i < count && (parts[i] < 0 || parts[i] >= threads))) return false;
        }
        if (job % 200 == 0) usleep(200);
    }
    return true;
}

int main() {
    bool right[2];
    std::thread first([&] { right[0] = counts_are_right(1); }), second([&] { right[1] = counts_are_right(2); });
    first.join(), second.join();
    if (!right[0] || !right[1] || !counts_are_right(3)) return 1;
#ifndef __SANITIZE_THREAD__  // which knows no threads of a fork's child
    for (int fork_number = 0; fork_number < 20; ++fork_number) {
        for_each(3, 100, true, [](int, int) {});
        const pid_t child = fork();
        if (child == 0) _exit(counts_are_right(fork_number) ? 0 : 1);
        int status = 1;
        if (waitpid(child, &status, 0) != child || status != 0) return 2;
    }
#endif
    std::puts("all counted once");
    return 0;
}
