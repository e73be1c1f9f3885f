#!/usr/bin/env bash
# tusd: after a crash in a container an upload stays locked for ever; beside a live container it does not lock at all
#
# Run:      the filelocker of tusd 2.9.1 (Go), which its server has for uploads in a folder: processes that each have a PID namespace of
#           their own, as containers have (unshare), and are process 1 or about 60 in it.
# Guess:    a lock file with a process id knows the dead from the living: after a crash the restarted container gets the lock, and two
#           containers exclude each other, or the package says that they do not.
# Seen:     after a crash, the next process 1 reads "1" in the file, finds process 1 alive, which is itself, and waits for it in vain. With
#           other ids it is the other way round: process 60 of one container has the lock, and there is no such process in the other, so
#           both have it.
# Matters:  the first process of an image is nearly always number 1, and a crash in the middle of an upload is what the id in the file is
#           for. Containers need an emptied lock folder at their start, and not a shared one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/tus/tusd/v2@v2.9.1
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tus/tusd/v2/pkg/filelocker"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lock, err := filelocker.New(os.Args[1]).NewLock("upload")
	if err != nil {
		panic(err)
	}
	got := "locked"
	if err := lock.Lock(ctx, func() {}); err != nil {
		got = err.Error()
	}
	fmt.Printf("process %d: %s\n", os.Getpid(), got)
	if len(os.Args) > 2 {
		time.Sleep(time.Minute) // holds it
	}
	os.Exit(1) // a crash: no Unlock
}
END
go build -o locker .

# Runs its arguments as process 1 of a PID namespace.
container=(unshare --user --map-root-user --pid --fork --kill-child)

main() {
	mkdir crash plain beside
	echo "restarted after a crash, in a container:"
	"${container[@]}" ./locker crash || true
	"${container[@]}" ./locker crash || true
	echo "restarted after a crash, outside of one:"
	./locker plain | sed 's/[0-9]\+/N/' || true
	./locker plain | sed 's/[0-9]\+/N/' || true
	echo "two containers at once:"
	run "${container[@]}" bash -c 'for i in {1..60}; do /bin/true; done; ./locker beside hold; exit'
	until grep -qs locked background.log; do
		sleep 0.1
	done
	sed 's/[0-9]\+/N/' background.log
	"${container[@]}" ./locker beside || true
}
expect main <<'END'
restarted after a crash, in a container:
process 1: locked
process 1: ERR_LOCK_TIMEOUT: failed to acquire lock before timeout
restarted after a crash, outside of one:
process N: locked
process N: locked
two containers at once:
process N: locked
process 1: locked
END
