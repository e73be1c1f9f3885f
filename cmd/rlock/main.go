// Command rlock brings the lock of package rlock to the shell, and shows in ten seconds what it does.
//
//	rlock demo                           several processes share one lock, one of them is killed
//	rlock run [flags] NAME -- command…   runs a command while it holds the lock NAME
//	rlock ls, show, top, watch           who holds which locks, and who waits
//	rlock deadlocks                      sections that wait for each other
//	rlock ask NAME                       asks whoever holds a lock for it
//	rlock unlock -force NAME             frees a lock whoever holds it
//	rlock token NAME                     tells, or raises, its fencing counter
//	rlock doctor                         what a Redis means for the guarantees
//
// docs/cli.md shows each of them.
package main

import (
	"os"
	"runtime"
)

func main() {
	// Linux ends our children with the thread that started them (see dieWithParent), so this one stays.
	runtime.LockOSThread()
	p := &program{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}
	code := p.main(os.Args[1:])
	if p.interrupt != nil {
		p.interrupt()
	}
	os.Exit(code)
}
