package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const usageRecord = `usage: rlock record [flags] [PATTERN]

Records who holds and who waits for which lock, hand-overs, losses and forced
unlocks, until -for is over, or Ctrl-C. "rlock report" makes a page of it.
PATTERN is a Redis pattern as for "rlock ls"; semaphores and latches are left
out. Levels of a hold are not recorded.

It finds locks by SCAN, by their waiters and by their unlock messages. It looks
at each every -every, and after messages, at most five times in that time; all
looks together send at most -rate commands a second. With too many names for
that, it looks less often, and each event has within_ms, the time in which it
happened. Shorter holds may be missed. It does not count as a waiter. It cannot
listen on the sharded channels of a cluster, and only polls there.

  -for D       end after D (default: record until Ctrl-C)
  -o F         append to F, which is a new file or a recording (default: print)
  -every D     time between looks without a message (default 1s, at least 50ms)
  -rate N      commands a second at most (default 1000, at least 100)
  -limit N     locks at most; those beyond are counted (default 10000)
` + usageTarget + `
It outlives restarts of Redis, and says when it did not answer.

exit code  0   2 usage   125 Redis failed at the start, or the file did
`

func (p *program) record(args []string) int {
	var t target
	flags := p.flags("record", &t)
	last := flags.Duration("for", 0, "")
	file := flags.String("o", "", "")
	every := flags.Duration("every", time.Second, "")
	rate := flags.Int("rate", 1000, "")
	limit := flags.Int("limit", 10_000, "")
	pattern, given, code, ok := p.parseOne(flags, args)
	switch {
	case !ok:
		return code
	case *last < 0:
		return p.misuse(errors.New("-for can't be negative"), "record")
	case *every < watchInterval:
		return p.misuse(fmt.Errorf("-every must be at least %s", watchInterval), "record")
	case *rate < leastRate:
		return p.misuse(fmt.Errorf("-rate must be at least %d", leastRate), "record")
	case *limit < 1:
		return p.misuse(errors.New("-limit must be at least 1"), "record")
	case !given:
		pattern = "*"
	}
	return p.interruptibly(func(ctx context.Context, begun func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		hidden, err := v.hidden(ctx, pattern)
		if err != nil {
			return p.failed(ctx, v.at(err))
		}
		for _, what := range hidden {
			p.fail(0, what)
		}
		out := p.out
		if *file != "" {
			f, err := appendRecording(*file)
			if err != nil {
				return p.fail(exitInternal, err)
			}
			defer func() { _ = f.Close() }()
			out = f
		}
		begun()
		if *last > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx) // without a deadline, which would let the last look fail
			defer cancel()
			defer time.AfterFunc(*last, cancel).Stop()
		}
		r := newRecorder(v, pattern, *every, *rate, *limit, out)
		if err := r.run(ctx); err != nil {
			return p.fail(exitInternal, fmt.Errorf("the recording ends early: %w", err))
		}
		return 0
	})
}

// hidden says what this user may not see. It fails if Redis does not answer.
func (v *viewer) hidden(ctx context.Context, pattern string) (all []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d, err := deployed(ctx, v.rdb)
	if err != nil {
		return nil, err
	}
	_, err = v.page(ctx, d.masters[0], 0, search{pattern: escapeGlob(v.prefix) + pattern, keyType: "hash"})
	if isForbidden(err) {
		all = append(all, fmt.Errorf("locks that nobody waits for are found by their messages only: %w", err))
	} else if err != nil {
		return nil, err
	}
	n := d.masters[0]
	err = n.Do(ctx, n.B().PubsubChannels().Pattern(lockChannel+":").Build()).Error()
	if isForbidden(err) {
		return append(all, fmt.Errorf("waiters are seen only where they stand in line: %w", nodeError{n.addr, fmt.Errorf("PUBSUB: %w", err)})), nil
	}
	return all, err
}

// recordWriter writes lines. While the disk is slow, it blocks the looks: so memory is bounded, and later events have a longer within_ms.
type recordWriter struct {
	w   *bufio.Writer
	err error // the first one
}

func newRecordWriter(w io.Writer) *recordWriter {
	return &recordWriter{w: bufio.NewWriterSize(w, 64<<10)}
}

func (w *recordWriter) line(v any) {
	_, err := w.w.WriteString(jsonLine(v) + "\n")
	w.err = cmp.Or(w.err, err)
}

func (w *recordWriter) event(e event) {
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	w.line(e)
}

func (w *recordWriter) flush() error {
	w.err = cmp.Or(w.err, w.w.Flush())
	return w.err
}
