package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A Lock that is refused by an owner with the mark looks up the label of its Client, for the error that it may end with: beside its wait, or, if it
// does not wait, for a moment before it returns. Labels never change, so one answer is enough for all waiters of a process. A missing label is looked
// up three times, since the holder may be about to write it, and again a minute later.

const (
	// labelWait is how long a Lock that does not wait, or Info, waits for a label.
	labelWait = 200 * time.Millisecond
	// seekLabelAgain is how long a label counts as missing.
	seekLabelAgain = time.Minute
	// mostLabels bounds how many are remembered.
	mostLabels = 1000
	// mostSeeking bounds the look-ups under way; further ones are left to the next refusal.
	mostSeeking = 64
)

// labelPauses are those before the look-ups of one search.
var labelPauses = [...]time.Duration{0, 100 * time.Millisecond, time.Second}

// labels are those of other Clients.
type labels struct {
	refused atomic.Bool // the user may not read them
	told    atomic.Bool // and that, or that it may not write its own, was said

	mu      sync.Mutex // guards the following; no other lock is taken under it
	of      map[string]*foundLabel
	seeking int
}

// foundLabel is what is known of one label.
type foundLabel struct {
	text     string        // "": it is missing, or not known yet
	since    time.Time     // when the search began
	answered chan struct{} // closed with the first answer, or without one
}

// LabelOf returns the label of the Client of an owner, as far as it is known here; "" otherwise.
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

// AwaitLabel returns the label of an owner that has refused a caller who does not wait, or "". It may look it up, see Labels; the caller's limit ends
// that, too.
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

// Labels returns the labels of owners, each as far as it is known. Others are looked up, for up to labelWait, or until ctx is done or the engine is closed.
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

// seekLabel looks up the label of an owner that has one, unless that is known or was tried. It returns at once. The channel is closed when there is
// an answer; nil: it makes no sense to wait for one.
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

// begin returns what is known of the label of that Client, and whether it is to be looked up now; nil if too many are.
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
	if s.of == nil || len(s.of) >= mostLabels { // some are looked up once more
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

// findLabel is a search.
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

// readLabel returns the label of that Client, or "". What others may have put there is none if it has another form.
func (c *Engine) readLabel(id string) (string, error) {
	text, err := c.rdb.Do(c.Calls.Context(context.Background(), time.Now(), 0), c.rdb.B().Get().Key(kinds.LabelKey(id)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return "", nil
	}
	if err != nil || !kinds.IsLabel(text) {
		return "", err
	}
	return text, nil
}
