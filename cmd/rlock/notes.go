package main

import (
	"fmt"
	"io"
	"time"
)

// notes writes lines for people, on a goroutine of its own: whoever keeps a lock does not wait for whoever reads them, or does not.
type notes struct {
	lines chan string
	ended chan struct{}
}

const (
	mostNotes = 64          // that wait to be written; those beyond are left out
	noteTime  = time.Second // for the rest of them, at the end
)

func newNotes(w io.Writer) *notes {
	n := &notes{make(chan string, mostNotes), make(chan struct{})}
	go func() { // ends with end, and is left alone if w takes nothing
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

// end waits for what is left, unless nobody reads it.
func (n *notes) end() {
	close(n.lines)
	select {
	case <-n.ended:
	case <-time.After(noteTime):
	}
}
