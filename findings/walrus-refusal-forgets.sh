#!/usr/bin/env bash
# walrus: with RateLimitLua, whoever pauses after a refusal finds the limit of a minute gone after two seconds for each place of it
#
# Run:      walrus 0.9.8 with redis-py 8.1.0 (PyPI), Redis 8.2.3: rate_limit_lua("mail", limit=2, per=60) is asked four times at once, five
#           rounds, with six seconds between them. The same with rate_limit(), and with rate_limit_lua() and one second between the rounds.
# Guess:    two are let in, eighteen are refused: five rounds take less than a minute. rate_limit_lua() is the same limit, "uses a Lua script to
#           ensure atomicity".
# Seen:     rate_limit() keeps its list for per * 2000 ms, the script for limit * 2000. It sets that with each refusal: whoever asks on and
#           on stays out, and whoever pauses for more than four seconds finds an empty list, and two are let in again, in each round.
# Matters:  the polite one, who backs off after a refusal, gets ten times what the limit says. One who never is refused leaves a list
#           that never expires. What a limit remembers must live for its window, whatever its number is.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
python_packages walrus==0.9.8 redis==8.1.0
cat >main.py <<'END'
import sys
import time

from walrus import Database

database = Database(port=int(sys.argv[1]))


def rounds(name, limit, pause):
    let_in = []
    for number in range(5):
        if number:
            time.sleep(pause)
        let_in.append(sum(not limit.limit("user") for _ in range(4)))
    print(f"{name}, rounds {pause} s apart: let in:", *let_in)


rounds("rate_limit", database.rate_limit("plain", limit=2, per=60), 6)
rounds("rate_limit_lua", database.rate_limit_lua("script", limit=2, per=60), 1)
rounds("rate_limit_lua", database.rate_limit_lua("mail", limit=2, per=60), 6)
END
expect python3 main.py "$port" <<'END'
rate_limit, rounds 6 s apart: let in: 2 0 0 0 0
rate_limit_lua, rounds 1 s apart: let in: 2 0 0 0 0
rate_limit_lua, rounds 6 s apart: let in: 2 2 2 2 2
END
