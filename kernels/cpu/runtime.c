/* Threads, scratch memory and the choice of the instruction set. Compiled once, for the baseline x86-64. */
#define _GNU_SOURCE
#include "common.h"
#include <immintrin.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

#ifndef SOURCE_HASH
#define SOURCE_HASH "unknown"
#endif
PUBLIC const char *smoe_source_hash(void) { return "smoe-source-hash:" SOURCE_HASH; }

/* ---- threads: libgomp's pool, the one that torch already runs, found by the loader in this process ---- */

typedef void (*GompParallel)(void (*)(void *), void *, unsigned, unsigned);
static GompParallel gomp_parallel;
static int (*gomp_thread_num)(void), (*gomp_num_threads)(void);

PUBLIC void smoe_set_gomp(void *parallel, void *thread_num, void *num_threads)
{
    gomp_parallel = (GompParallel)parallel;
    gomp_thread_num = (int (*)(void))thread_num;
    gomp_num_threads = (int (*)(void))num_threads;
}

#define MAX_THREADS 64
#define REGION_WORK 4e5 /* about 20 us on one core; a region costs 2, and far more where cores are oversubscribed */

int team_size(int threads, double work)
{
    if (!gomp_parallel || work < REGION_WORK)
        return 1;
    return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
}

typedef struct {
    Body body;
    void *args;
    Shared shared;
} Job;

static void job_main(void *data)
{
    Job *job = data;
    /* The pool may grant fewer threads than were asked for (nesting, limits). */
    Team team = {&job->shared, gomp_thread_num(), gomp_num_threads()};
    job->body(job->args, &team);
}

void team_run(int n, Body body, void *args)
{
    Job job = {.body = body, .args = args};
    memset(&job.shared, 0, sizeof job.shared);
    if (n > 1) {
        gomp_parallel(job_main, &job, (unsigned)n, 0);
    } else {
        Team team = {&job.shared, 0, 1};
        body(args, &team);
    }
}

void team_barrier(const Team *team)
{
    if (team->n == 1)
        return;
    Shared *s = team->shared;
    int generation = atomic_load_explicit(&s->generation, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&s->arrived, 1, memory_order_acq_rel) == team->n - 1) {
        atomic_store_explicit(&s->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&s->generation, generation + 1, memory_order_release);
        return;
    }
    for (unsigned spins = 0; atomic_load_explicit(&s->generation, memory_order_acquire) == generation; spins++) {
        if (spins < 4000)
            _mm_pause();
        else
            sched_yield(); /* the other thread may be waiting for this very core */
    }
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
