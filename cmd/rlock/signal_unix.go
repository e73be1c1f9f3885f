//go:build unix

package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// parseSignal parses a signal as kill(1) does: a name, with or without SIG, or a number.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && unix.SignalName(syscall.Signal(n)) != "" {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("%q is not a signal: use a name, such as USR1, or a number", text)
}
