package main

// report is a worker's result for its window, as one line of JSON. The Java worker writes the same.
type report struct {
	Ops       int64   `json:"ops"` // sections that ended in the window
	ElapsedNs int64   `json:"elapsed_ns"`
	Latency   latency `json:"latency_ns"` // its meaning depends on the workload

	// PerGoroutine are each goroutine's ops, to find starvation.
	PerGoroutine []int64 `json:"per_goroutine,omitempty"`
	// Sections are all sections seen by the witness: ops, and those in progress when the window closed.
	Sections int64 `json:"sections"`
	// Violations are entries into an occupied section.
	Violations int64 `json:"violations"`
	// Stuck are goroutines still waiting long after all others had finished.
	Stuck int64 `json:"stuck,omitempty"`

	AllocsPerOp float64            `json:"allocs_per_op,omitempty"`
	BytesPerOp  float64            `json:"bytes_per_op,omitempty"`
	Extra       map[string]float64 `json:"extra,omitempty"`

	Error string `json:"error,omitempty"`
}
