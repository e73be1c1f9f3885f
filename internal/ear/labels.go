package ear

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A Lock that is refused by a marked owner looks up the label of that owner's Client in the background, for what this process says from
// then on. Labels never change, so one answer is enough for all waiters of a process. A missing label is looked up three times, since the
// holder may be about to write it, and again a minute later.

const (
	// seekLabelAgain is how long a label counts as missing.
	seekLabelAgain = time.Minute
	// mostLabels bounds the remembered labels.
	mostLabels = 1000
	// mostSeeking bounds the look-ups under way; further ones are left to the next refusal.
	mostSeeking = 64
)

// labelPauses are the pauses before the look-ups of one search.
var labelPauses = [...]time.Duration{0, 100 * time.Millisecond, time.Second}

// labels are the labels of other Clients.
type labels struct {
	refused atomic.Bool // the Redis user lacks the right to read them
	told    atomic.Bool // a missing right to read or write labels was logged

	mu      sync.Mutex // guards the following; no other lock is taken under it
	found   map[string]*foundLabel
	seeking int
}

type foundLabel struct {
	text  string    // "": missing, or not known yet
	since time.Time // when the search began
}

// LabelOf returns the label of an owner's Client if it is known here, or "": then it is looked up for later.
func (e *Ear) LabelOf(owner string) string {
	mark, id, _ := kinds.CapabilityOf(owner)
	switch {
	case !mark.Wants(kinds.Labelled):
		return ""
	case id == e.ID:
		return e.label.text
	}
	known, seek := e.labels.of(id)
	if seek != nil {
		e.Calls.Background(func() { e.findLabel(id, seek) }) // ends with the answer, soon after a missing one, or with Close
	}
	return known
}

// of returns the label of that Client, if it is known, and its state if the caller must look it up.
func (s *labels) of(id string) (known string, seek *foundLabel) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.found[id]
	if l != nil && (l.text != "" || now.Sub(l.since) < seekLabelAgain) {
		return l.text, nil
	}
	if s.refused.Load() || s.seeking >= mostSeeking {
		return "", nil
	}
	if s.found == nil || len(s.found) >= mostLabels { // forget all; labels still needed are looked up again
		s.found = make(map[string]*foundLabel)
	}
	l = &foundLabel{since: now}
	s.found[id] = l
	s.seeking++
	return "", l
}

// findLabel makes the look-ups of one search.
func (e *Ear) findLabel(id string, l *foundLabel) {
	s := &e.labels
	defer func() {
		s.mu.Lock()
		s.seeking--
		s.mu.Unlock()
	}()
	for i, pause := range labelPauses {
		if i > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-e.Calls.Done():
				timer.Stop()
				return
			}
		}
		text, err := readLabel(e.RDB.Do(e.Calls.Context(context.Background()), e.RDB.B().Get().Key(kinds.LabelKey(id)).Build()))
		s.mu.Lock()
		l.text = text
		s.mu.Unlock()
		switch {
		case text != "":
			return
		case isForbidden(err):
			s.refused.Store(true)
			e.tellOfLabels(err)
			return
		}
	}
}

// readLabel returns the label in a reply, or "". It ignores a value that is no valid label: anybody may have written it.
func readLabel(reply rueidis.RedisResult) (string, error) {
	text, err := reply.ToString()
	if errors.Is(err, rueidis.Nil) {
		return "", nil
	}
	if err != nil || !kinds.IsLabel(text) {
		return "", err
	}
	return text, nil
}
