// Package lua holds the scripts that change a lock in Redis, with a typed Go function for each.
//
// It is a building block of package rlock, outside its compatibility promise.
//
// Each script is a file of its own, whose header lists its KEYS, ARGV and replies. All of them can be sent twice: a
// caller states the count that it expects to end with, so that a repeat after a lost reply is recognised and not
// counted again. Acquire never lowers a count, Release never raises one.
//
// A refused Acquire may join a [Queue] of waiting processes, and a Release gives the lock to the first of them. The
// queue is a key of its own, and locks work without it. acquire.lua describes the queue, release.lua the messages to
// its members.
//
// Scripts whose names begin with fair keep the queue of a fair lock ([Fair]), in Redisson's form: each waiter has a
// place there, and keeps it by [Refresh].
//
// Some files are not scripts but functions put in front of scripts; script.go lists them. Scripts pass Redis strings
// where they can, also for numbers: Redis formats Lua numbers with printf, which takes as long as half a command.
//
// All functions are safe for concurrent use. They send one EVALSHA, and one EVAL more if the server does not know the
// script yet. Nothing is retried, with two exceptions: an acquire with replicas follows MOVED and ASK, as rueidis
// does for all other calls; Acquire and Release are sent again without the queue if the queue may be the reason for a
// refusal.
//
// An error that wraps a [rueidis.RedisError] came from the server, which then did not carry out the call; [ErrForeign]
// is such an error. There is one exception: a release that may not publish to the lock's channel still frees the lock.
// With [ErrNoConnection] nothing was sent. Any other error leaves open whether the script ran.
package lua
