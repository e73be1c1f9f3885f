// Package lua holds the scripts that change a lock in Redis, and one typed Go function for each.
//
// It is a building block of package rlock, outside its compatibility promise.
//
// Every script is a file of its own, whose header names its KEYS, ARGV and replies. All of them
// can be sent twice: a caller says which count it expects to end with, so a repeat of a call whose
// reply was lost is recognised instead of counted again. Acquire never lowers a count, Release
// never raises one. Acquire and Release also keep the queue of the processes that wait for a lock: acquire.lua says what it
// is, release.lua what those in it are told.
//
// An Acquire that is refused may join a [Queue] of waiting processes, and a Release gives the lock to
// the first of it. The queue is a key of its own, which locks can do without.
//
// Scripts whose names begin with fair keep the queue of a fair lock ([Fair]), which is Redisson's: there each waiter has a place,
// and has to keep it by [Refresh].
//
// Some files are no scripts, but functions that stand before scripts; script.go says which before which. Scripts pass Redis
// strings where they can, also for numbers: it formats a number of Lua's with printf, which takes as long as half a command.
//
// All functions are safe for concurrent use. They send one EVALSHA, and one EVAL more if the
// server does not know the script yet. Nothing is retried, with two exceptions: an acquire with
// replicas follows MOVED and ASK as rueidis does for all others, and Acquire and Release are sent again
// without the queue if they may have been refused for that. An error that wraps a
// [rueidis.RedisError] came from the server, which then did not do what was asked, except that a lock
// whose channel may not be published to is free nevertheless. [ErrForeign] is one of these. With
// [ErrNoConnection] nothing was sent. Any other error leaves open whether the script ran.
package lua
