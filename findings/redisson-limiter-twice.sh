#!/usr/bin/env bash
# Redisson: what is given back to a rate limiter can be taken twice, once now, and once more when its time is over
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: an RRateLimiter of ten in six seconds. Half the time of its first window is over when
#           somebody takes as much as there is, for five seconds; in the second case, somebody has taken ten before, and released them.
# Guess:    ten in both cases: after release(10) it is as if nobody had taken them.
# Seen:     twenty in the second. release adds to the number that is free, and the entry that says when the ten come back stays. They come
#           back three seconds after they were taken by somebody else.
# Matters:  "gives back what was not used", for a call that failed before it was made, lets through up to twice the limit, and a cap at the
#           rate hides it from whoever tests with a limiter that nobody else uses. To give back is to remove what was written.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
for (boolean released : new boolean[] {false, true}) {
    RRateLimiter limiter = one.getRateLimiter("calls-" + released);
    limiter.trySetRate(RateType.OVERALL, 10, Duration.ofSeconds(6));
    if (released) {
        limiter.acquire(10);
        limiter.release(10);
    }
    Thread.sleep(3_000);
    long start = System.nanoTime();
    int taken = 0;
    while (millisecondsSince(start) < 5_000) {
        if (other.getRateLimiter("calls-" + released).tryAcquire()) {
            taken++;
        } else {
            Thread.sleep(50);
        }
    }
    System.out.println("ten released before: " + released + ": taken in five seconds: " + taken);
}
END
expect java_main "$port" <<'END'
ten released before: false: taken in five seconds: 10
ten released before: true: taken in five seconds: 20
END
