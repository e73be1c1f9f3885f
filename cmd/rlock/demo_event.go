package main

import "time"

// event is one line that a worker process tells the demo.
type event struct {
	Kind  string `json:"kind"`
	Clerk int    `json:"clerk,omitempty"`
	Lock  string `json:"lock,omitempty"`
	Layer string `json:"layer,omitempty"` // the function that locks
	Depth int    `json:"depth,omitempty"` // 1: not a re-entry
	At    int64  `json:"at,omitempty"`    // in ns; all processes of a machine share its clock
	Want  int64  `json:"want,omitempty"`  // when it asked for the lock
	Found string `json:"found,omitempty"` // who else was there according to the witness
}

// Kinds of events.
const (
	ready   = "ready"
	entered = "entered"
	left    = "left"
	wrote   = "wrote" // counted
	stuck   = "stuck" // will stay inside for ever
)

// workerConfig is the first line that a worker process is told. What follows are the words below.
type workerConfig struct {
	Addr     string        `json:"addr"`
	Embedded bool          `json:"embedded"`
	Prefix   string        `json:"prefix"` // of all keys
	Watchdog time.Duration `json:"watchdog"`
	Letter   string        `json:"letter"`
	Cheats   bool          `json:"cheats"` // leaves out the lock
}

// Words for a worker. The end of the input means that the demo has gone.
const (
	wordGo    = "go"
	wordCrash = "crash" // one clerk is to stop in mid-section
	wordStop  = "stop"  // finish what you began
)

// key names are made so that the locks and counters of one demo are told from those of another.
func (c workerConfig) key(kind, what string) string { return c.Prefix + ":" + kind + ":" + what }
