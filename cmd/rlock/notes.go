package main

import (
	"fmt"
	"io"
	"time"
)

// notes writes lines for people on its own goroutine, so that a slow or stuck reader does not delay the goroutine that keeps a lock.
type notes struct {
	lines chan string
	ended chan struct{}
}

const (
	mostNotes = 64          // lines waiting to be written; any more are dropped
	noteTime  = time.Second // for the remaining lines, at the end
)

func newNotes(w io.Writer) *notes {
	n := &notes{make(chan string, mostNotes), make(chan struct{})}
	go func() { // ends with end, or is abandoned if w blocks
		defer close(n.ended)
		for line := range n.lines {
			fmt.Fprintln(w, line)
		}
	}()
	return n
}

func (n *notes) say(text string) {
	select {
	case n.lines <- "rlock: " + clean(text):
	default:
	}
}

// end waits for the remaining lines, unless nobody reads them.
func (n *notes) end() {
	close(n.lines)
	select {
	case <-n.ended:
	case <-time.After(noteTime):
	}
}
