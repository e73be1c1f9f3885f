//go:build !unix

package main

import (
	"errors"
	"syscall"
)

// parseSignal accepts none: here any signal would kill the command.
func parseSignal(string) (syscall.Signal, error) {
	return 0, errors.New("this system has no signal that a command could survive")
}
