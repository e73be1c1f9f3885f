//go:build !unix

package main

import "syscall"

// ownGroup does nothing: the console sends Ctrl-C to the command itself.
func (c *child) ownGroup() { c.group = false }

// signal ends the command: there is no gentler way.
func (c *child) signal(syscall.Signal) { _ = c.cmd.Process.Kill() }
