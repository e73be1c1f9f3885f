package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A Lock that is refused by a marked owner looks up the label of that owner's Client, for the error it may return. It does so while it
// waits, or briefly before it returns if it does not wait. Labels never change, so one answer is enough for all waiters of a process. A
// missing label is looked up three times, since the holder may be about to write it, and again a minute later.

const (
	// labelWait is how long a Lock that does not wait, or Info, waits for a label.
	labelWait = 200 * time.Millisecond
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
	of      map[string]*foundLabel
	seeking int
}

// foundLabel is the state of one label.
type foundLabel struct {
	text     string        // "": missing, or not known yet
	since    time.Time     // when the search began
	answered chan struct{} // closed after the first look-up, even if it failed
}

// LabelOf returns the label of an owner's Client if it is known here, or "".
func (c *Engine) LabelOf(owner string) string {
	mark, id, _ := kinds.MarkOf(owner)
	switch {
	case !mark.Wants(kinds.Labelled):
		return ""
	case id == c.ID:
		return c.Options.Label
	}
	c.labels.mu.Lock()
	defer c.labels.mu.Unlock()
	if l := c.labels.of[id]; l != nil {
		return l.text
	}
	return ""
}

// AwaitLabel returns the label of an owner that has refused a caller who does not wait, or "". It may look it up, see Labels; the caller's
// limit ends that, too.
func (c *Engine) AwaitLabel(who Caller, owner string) string {
	if mark, _, _ := kinds.MarkOf(owner); !mark.Wants(kinds.Labelled) {
		return ""
	}
	wait := labelWait
	if !who.Limit.IsZero() {
		wait = min(wait, time.Until(who.Limit))
	}
	return c.awaitLabels(who.Ctx, wait, []string{owner})[0]
}

// Labels returns the labels of owners. It looks up unknown ones, for up to labelWait, or until ctx is done or the engine is closed.
func (c *Engine) Labels(ctx context.Context, owners []string) []string {
	return c.awaitLabels(ctx, labelWait, owners)
}

func (c *Engine) awaitLabels(ctx context.Context, wait time.Duration, owners []string) []string {
	var pending []<-chan struct{}
	for _, owner := range owners {
		if answered := c.seekLabel(owner); answered != nil {
			pending = append(pending, answered)
		}
	}
	if len(pending) > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		for _, answered := range pending {
			select {
			case <-answered:
				continue
			case <-timer.C:
			case <-ctx.Done():
			case <-c.Calls.Done():
			}
			break
		}
	}
	found := make([]string, len(owners))
	for i, owner := range owners {
		found[i] = c.LabelOf(owner)
	}
	return found
}

// seekLabel begins to look up the label of a marked owner, unless it is known or was tried. It returns at once. The channel is closed after
// the first look-up; nil: waiting is pointless.
func (c *Engine) seekLabel(owner string) (answered <-chan struct{}) {
	mark, id, _ := kinds.MarkOf(owner)
	if !mark.Wants(kinds.Labelled) || id == c.ID || c.labels.refused.Load() {
		return nil
	}
	l, begun := c.labels.begin(id)
	if begun {
		c.inBackground(func() { c.findLabel(id, l) }) // ends with the answer, soon after a missing one, or with Close
	}
	if l == nil || time.Since(l.since) >= labelWait {
		return nil
	}
	return l.answered
}

// begin returns the state of that Client's label, and whether the caller must look it up; nil if too many look-ups are under way.
func (s *labels) begin(id string) (l *foundLabel, begun bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.of[id]; l != nil && (l.text != "" || now.Sub(l.since) < seekLabelAgain) {
		return l, false
	}
	if s.seeking >= mostSeeking {
		return nil, false
	}
	if s.of == nil || len(s.of) >= mostLabels { // forget all; labels still needed are looked up again
		s.of = make(map[string]*foundLabel)
	}
	l = &foundLabel{since: now, answered: make(chan struct{})}
	s.of[id] = l
	s.seeking++
	return l, true
}

func (s *labels) found(l *foundLabel, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.text = text
}

func (s *labels) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seeking--
}

// findLabel makes the look-ups of one search.
func (c *Engine) findLabel(id string, l *foundLabel) {
	defer c.labels.ended()
	for i, pause := range labelPauses {
		if i > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-c.Calls.Done():
				timer.Stop()
				return
			}
		}
		text, err := c.readLabel(id)
		c.labels.found(l, text)
		if i == 0 {
			close(l.answered)
		}
		switch {
		case text != "":
			return
		case isForbidden(err):
			c.labels.refused.Store(true)
			c.tellOfLabels(err)
			return
		}
	}
}

// readLabel returns the label of that Client, or "". It ignores a value that is no valid label: anybody may have written it.
func (c *Engine) readLabel(id string) (string, error) {
	text, err := c.RDB.Do(c.Calls.Context(context.Background(), time.Now(), 0), c.RDB.B().Get().Key(kinds.LabelKey(id)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	if err != nil || !kinds.IsLabel(text) {
		return "", err
	}
	return text, nil
}
