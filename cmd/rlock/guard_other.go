//go:build unix && !linux

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// selfPath is empty: os.Executable knows.
const selfPath = ""

// adoptOrphans has no counterpart here.
func adoptOrphans() {}

// setName has no counterpart here.
func setName(string) {}

func duplicate(from, to int) error { return unix.Dup2(from, to) }

// bootClock is a clock that all processes share.
func bootClock() time.Duration { return time.Duration(time.Now().UnixNano()) }

// descendants are unknown here, except for the command's group.
func descendants() []int { return nil }
