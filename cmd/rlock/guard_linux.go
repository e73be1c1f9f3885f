package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// selfPath is this program, even after its file was replaced.
const selfPath = "/proc/self/exe"

// adoptOrphans makes this process the parent of descendants whose own parent has ended: none can leave it.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // since Linux 3.4
}

// setName sets the name that ps(1) and pkill(1) show and heed.
func setName(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

func duplicate(from, to int) error { return unix.Dup3(from, to, 0) }

// bootClock is a clock that all processes share, and that goes on during a suspend.
func bootClock() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil { // since Linux 2.6.39
		return 0
	}
	return time.Duration(t.Nano())
}

// descendants returns the processes that descend from this one, zombies included.
func descendants() (all []int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = proc.Close() }()
	names, _ := proc.Readdirnames(-1)
	children := make(map[int][]int)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if parent, ok := parentOf(name); ok {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	for next := children[syscall.Getpid()]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// parentOf reads a process's parent. ok is false if the process has gone.
func parentOf(pid string) (parent int, ok bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, false
	}
	// 4711 (name, which may contain anything) S 1 …
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, err == nil
}
