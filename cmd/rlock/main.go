// Command rlock brings the lock of package rlock to the shell.
//
//	rlock demo                           see it work, in about ten seconds
//	rlock run [flags] NAME -- command…   run a command while holding the lock NAME
//	rlock ls, show, top, watch           show locks, holders and waiters
//	rlock record, report                 record them for a night, and make a page of it
//	rlock ask NAME                       ask the holder to give up a lock
//	rlock deadlocks                      show sections that wait for each other
//	rlock unlock -force NAME             free a lock, whoever holds it
//	rlock token NAME                     print or raise a fencing counter
//	rlock doctor                         check a Redis against the guarantees
//	rlock completion SHELL               complete command lines
//
// See docs/cli.md.
package main

import (
	"os"
	"runtime"
)

func main() {
	// Linux ends our children when the thread that started them exits (see dieWithParent), so keep this thread.
	runtime.LockOSThread()
	if help := helpers[os.Args[0]]; help != nil {
		os.Exit(help(os.Args[1:]))
	}
	p := &program{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}
	code := p.main(os.Args[1:])
	if p.interrupt != nil {
		p.interrupt()
	}
	os.Exit(code)
}
