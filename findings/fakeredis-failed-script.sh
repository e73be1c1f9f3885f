#!/usr/bin/env bash
# fakeredis: after one script with a global variable, every later script fails
#
# Run:      fakeredis 2.40.0 with lupa 2.8, redis 8.1.0 (PyPI): a correct script, one that forgets "local", and the correct one again.
# Guess:    the wrong script gets an error, as Redis gives it, and the next one runs.
# Seen:     the variable stays in the client's interpreter, where the check for globals finds it after each script, whoever set it.
# Matters:  one test of a wrong script makes all that follow it fail, with an error about a variable that they do not have. A test that
#           expects an error from its script passes for the wrong reason.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python_packages fakeredis==2.40.0 lupa==2.8 redis==8.1.0
cat >main.py <<'END'
import fakeredis

client = fakeredis.FakeRedis()
for script in "return 1", "count = 1 return count", "return 1":
    try:
        print(script, "->", client.eval(script, 0))
    except Exception as error:
        print(script, "->", error)
END
expect python3 main.py <<'END'
return 1 -> 1
count = 1 return count -> Script attempted to set global variables: count
return 1 -> Script attempted to set global variables: count
END
