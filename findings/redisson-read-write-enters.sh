#!/usr/bin/env bash
# Redisson: a read/write lock enters a held plain lock of the same name
#
# Run:      Redisson 4.7.0 (Maven), Redis 8.2.3: one client has getLock("stock"), another tries getReadWriteLock("stock").
# Guess:    both kinds keep their owners in one hash under that name, so they exclude each other, or there is an error.
# Seen:     the read/write lock only looks at the hash's field "mode". A plain hold has none, so writer and reader get in at once. The
#           other way round it is as guessed: a plain lock waits for a writer.
# Matters:  during a move from a plain to a read/write lock, old and new processes must not share a name: they exclude each other in one
#           direction only, which a test with a polite order does not show.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redisson 4.7.0 <<'END'
RLock plain = one.getLock("stock");
RLock writer = other.getReadWriteLock("stock").writeLock();
writer.lock();
System.out.println("plain beside a writer: " + plain.tryLock());
writer.unlock();
plain.lock();
System.out.println("writer beside a plain hold: " + writer.tryLock());
System.out.println("both say that they hold it: " + (plain.isHeldByCurrentThread() && writer.isHeldByCurrentThread()));
END
expect java_main "$port" <<'END'
plain beside a writer: false
writer beside a plain hold: true
both say that they hold it: true
END
