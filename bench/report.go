package main

// report is what a worker process says about its window, as one line of JSON. The Java worker writes the
// same.
type report struct {
	Ops       int64   `json:"ops"` // sections that ended in the window
	ElapsedNs int64   `json:"elapsed_ns"`
	Latency   latency `json:"latency_ns"` // of what, says the workload

	// PerGoroutine are the ops of each, to find who starves.
	PerGoroutine []int64 `json:"per_goroutine,omitempty"`
	// Sections are all that left a trace with the witness: ops, and what was on its way when the
	// window closed.
	Sections int64 `json:"sections"`
	// Violations are entries into a section that somebody else was in.
	Violations int64 `json:"violations"`
	// Stuck are those that still waited long after everybody else had done.
	Stuck int64 `json:"stuck,omitempty"`

	AllocsPerOp float64            `json:"allocs_per_op,omitempty"`
	BytesPerOp  float64            `json:"bytes_per_op,omitempty"`
	Extra       map[string]float64 `json:"extra,omitempty"`

	Error string `json:"error,omitempty"`
}
