/* Threads, scratch memory and the choice of the instruction set. Compiled once, for the baseline x86-64. */
#define _GNU_SOURCE
#include "common.h"
#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

#ifndef SOURCE_HASH
#define SOURCE_HASH "unknown"
#endif
PUBLIC const char *smoe_source_hash(void) { return "smoe-source-hash:" SOURCE_HASH; }

/* ---- threads: a pool that is fed by the calling thread, which never waits for one to wake up ----

   state: epoch << 16 | OPEN | number of pool threads inside the region. The caller publishes a job under a new
   epoch, works on it itself, closes it, and returns when those that joined have left. A pool thread that comes while
   it is open joins; one that comes later waits for the next. Threads spin for a while between regions (layers
   follow each other within microseconds), then sleep. The loader creates them; each runs smoe_worker for good. */

#define MAX_THREADS 64
#define REGION_WORK 1e5
#define OPEN 0x8000u
#define IDLE_SPINS 20000 /* about 100 us */

typedef struct {
    _Alignas(64) atomic_int sleeping;
} Worker;

static Worker workers[MAX_THREADS];
static atomic_int num_workers;
static _Alignas(64) atomic_uint_fast64_t state;
static _Alignas(64) atomic_flag busy = ATOMIC_FLAG_INIT;
static struct {
    Body body;
    void *args;
    int n;
    Shared shared;
} job;

static void futex(atomic_int *word, int operation, int value)
{
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

int team_size(int threads, double work)
{
    if (work < REGION_WORK)
        return 1;
    int most = atomic_load_explicit(&num_workers, memory_order_relaxed) + 1;
    return threads < 1 ? 1 : threads > most ? most : threads;
}

/* Runs until the process ends; `index` counts from 0. */
PUBLIC int smoe_worker(int index)
{
    Worker *self = &workers[index];
    uint64_t seen = atomic_load(&state) >> 16;
    for (;;) {
        uint64_t now;
        unsigned spins = 0;
        while ((now = atomic_load_explicit(&state, memory_order_acquire)) >> 16 == seen) {
            if (spins++ < IDLE_SPINS) {
                _mm_pause();
                continue;
            }
            atomic_store(&self->sleeping, 1);
            if (atomic_load(&state) >> 16 == seen)
                futex(&self->sleeping, FUTEX_WAIT, 1);
            atomic_store(&self->sleeping, 0);
            spins = 0;
        }
        seen = now >> 16;
        while ((now & OPEN) && !atomic_compare_exchange_weak(&state, &now, now + 1))
            ;
        if (!(now & OPEN))
            continue;
        seen = now >> 16; /* the one that was joined, which may be newer than the one that was noticed */
        if (index + 1 < job.n) {
            Team team = {.shared = &job.shared, .tid = index + 1, .n = job.n};
            job.body(job.args, &team);
        }
        atomic_fetch_sub_explicit(&state, 1, memory_order_release);
    }
    return OK;
}

/* How many threads run smoe_worker; 0 in a child process that has lost them. */
PUBLIC void smoe_set_workers(int count)
{
    atomic_store(&num_workers, count < MAX_THREADS ? count : MAX_THREADS - 1);
    if (count == 0) {
        atomic_store(&state, 0);
        atomic_flag_clear(&busy);
    }
}

static void wait_while(int (*condition)(const void *), const void *what)
{
    for (unsigned spins = 0; condition(what); spins++) {
        if (spins < 4000)
            _mm_pause();
        else
            sched_yield(); /* the thread that is waited for may need this very core */
    }
}

static int someone_inside(const void *unused)
{
    (void)unused;
    return (atomic_load_explicit(&state, memory_order_acquire) & (OPEN - 1)) != 0;
}

void team_run(int n, Body body, void *args)
{
    /* Another thread of this process may be in a region; then this one works alone. */
    if (n == 1 || atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
        Team team = {.n = 1};
        body(args, &team);
        return;
    }
    job.body = body, job.args = args, job.n = n;
    memset(&job.shared, 0, sizeof job.shared);
    uint64_t epoch = (atomic_load_explicit(&state, memory_order_relaxed) >> 16) + 1;
    atomic_store(&state, epoch << 16 | OPEN);
    for (int i = 0; i < n - 1; i++)
        if (atomic_load(&workers[i].sleeping)) {
            atomic_store(&workers[i].sleeping, 0);
            futex(&workers[i].sleeping, FUTEX_WAKE, 1);
        }
    Team team = {.shared = &job.shared, .n = n};
    body(args, &team);
    atomic_fetch_and(&state, ~(uint64_t)OPEN);
    wait_while(someone_inside, NULL);
    atomic_flag_clear_explicit(&busy, memory_order_release);
}

static int unfinished(const void *what)
{
    const Team *team = what;
    for (int phase = 0; phase < PHASES; phase++)
        if (atomic_load_explicit(&team->shared->queue[phase].done, memory_order_acquire) < team->total[phase])
            return 1;
    return 0;
}

void team_barrier(Team *team)
{
    if (team->n == 1)
        return;
    if (team->holding) {
        atomic_fetch_add_explicit(&team->shared->queue[team->held].done, 1, memory_order_release);
        team->holding = 0;
    }
    wait_while(unfinished, team);
}

/* ---- scratch ---- */

#define KEEP_BYTES ((size_t)256 << 20)
static __thread void *scratch_memory;
static __thread size_t scratch_bytes;

void *scratch(size_t bytes)
{
    if (scratch_memory && bytes <= scratch_bytes && !(scratch_bytes > KEEP_BYTES && bytes < KEEP_BYTES))
        return scratch_memory;
    free(scratch_memory);
    scratch_bytes = align64(bytes + bytes / 4 + 65536);
    scratch_memory = aligned_alloc(64, scratch_bytes);
    if (!scratch_memory)
        scratch_bytes = 0;
    return scratch_memory;
}

/* ---- instruction set ---- */

#define DECLARE(name, params, call) int name##_avx2 params; int name##_avx512 params; static int (*op_##name) params;
OPERATIONS(DECLARE)

PUBLIC int smoe_cpu_level(void) /* 0: none of the variants runs here, 1: avx2, 2: avx512 */
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
               ? 2
               : 1;
}

PUBLIC void smoe_use_level(int level)
{
#define CHOOSE(name, params, call) op_##name = level == 2 ? name##_avx512 : name##_avx2;
    OPERATIONS(CHOOSE)
}

#define EXPORT(name, params, call) PUBLIC int smoe_##name params { return op_##name call; }
OPERATIONS(EXPORT)
