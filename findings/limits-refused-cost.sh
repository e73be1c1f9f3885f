#!/usr/bin/env bash
# limits: with the fixed window, a request that is refused for its cost uses up what is left
#
# Run:      limits 5.8.0 with redis-py 8.1.0 (PyPI), Redis 8.2.3: of ten in an hour one is taken, then a hit with cost=10 is asked for, then
#           one with cost=1. With the fixed window, the moving window and the sliding window counter.
# Guess:    yes, no, yes, and eight are left: hit() returns "True if cost could be deducted from the rate limit without exceeding it", and
#           nothing was deducted.
# Seen:     the fixed window adds the cost first and compares then, and nothing takes it back. Nobody gets anything for the rest of the hour,
#           though one of ten was used. The other two look first.
# Matters:  one request that is too large for what is left locks out all small ones, and the strategies, which one changes by a setting, do
#           not mean the same by "refused". What a limit refuses should not count, or be documented to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages limits==5.8.0 redis==8.1.0
cat >main.py <<'END'
import sys

from limits import RateLimitItemPerHour
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

storage = storage_from_string(f"redis://127.0.0.1:{sys.argv[1]}")
limit = RateLimitItemPerHour(10)
for name in ["fixed-window", "moving-window", "sliding-window-counter"]:
    limiter = STRATEGIES[name](storage)
    hits = [limiter.hit(limit, name, cost=cost) for cost in [1, 10, 1]]
    print(f"{name}: 1, 10, 1:", *hits, "left:", limiter.get_window_stats(limit, name).remaining)
END
expect python3 main.py "$port" <<'END'
fixed-window: 1, 10, 1: True False False left: 0
moving-window: 1, 10, 1: True False True left: 8
sliding-window-counter: 1, 10, 1: True False True left: 8
END
