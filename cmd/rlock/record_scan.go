package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// scanOn takes a step of the search for locks that nobody has told of.
func (r *recorder) scanOn(ctx context.Context, now time.Time) {
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	s := &r.scan
	if many := int64(len(r.beyond)); s.ended && many > 0 {
		r.out.event(event{Time: now, Event: eventMore, Count: &many})
	}
	if s.ended {
		s.ended, r.beyond = false, make(map[string]bool)
	}
	if len(s.servers) == 0 {
		share := time.Duration(float64(s.cost) / (scanShare * float64(r.rate)) * float64(time.Second))
		if now.Sub(s.began) < max(r.every, share) {
			return
		}
		d, err := deployed(asking, r.rdb)
		if all := len(nodes(r.rdb)); all > 1 {
			r.spend(all + 1)
		}
		if s.began, s.cost = now, 0; err != nil {
			return // the looks report it
		}
		s.servers, s.cursor = d.masters, 0
	}
	r.spend(1)
	s.cost++
	page, err := r.page(asking, s.servers[0], s.cursor, search{pattern: r.pattern, keyType: "hash"})
	if err != nil {
		s.servers = nil // the looks report it, unless this user may not scan
		return
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(page.Elements))) {
		if r.locks[key] == nil {
			r.candidates = append(r.candidates, &watched{key: key, candidate: true})
		}
	}
	if page.Cursor == 0 || page.Cursor == s.cursor {
		s.servers, page.Cursor = s.servers[1:], 0
		s.ended = len(s.servers) == 0
	}
	s.cursor = page.Cursor
}

// fails notes that Redis does not answer.
func (r *recorder) fails(ctx context.Context, err error) {
	if !r.down && ctx.Err() == nil {
		r.down = true
		r.out.event(event{Time: time.Now(), Event: eventDown, Error: trimPrefix(r.at(err))})
	}
}

// recovers notes that all answers again.
func (r *recorder) recovers(ctx context.Context) {
	if !r.down || r.blind || slices.ContainsFunc(slices.Collect(maps.Values(r.locks)), func(w *watched) bool { return w.broken }) {
		return
	}
	if r.noticeRestart(ctx) == nil {
		r.down, r.back = false, time.Now()
		r.out.event(event{Time: r.back, Event: eventUp})
	}
}

// noticeRestart notes whether the server was started again. It fails if it does not answer.
func (r *recorder) noticeRestart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	r.spend(1)
	server, err := r.runID(ctx)
	if err != nil {
		return err
	}
	if server != r.server {
		r.server, r.back = server, time.Now()
		r.out.event(event{Time: r.back, Event: eventRestart})
	}
	return nil
}

// runID returns what names this run of a server; "" on a cluster, and if the user may not ask.
func (v *viewer) runID(ctx context.Context) (string, error) {
	if v.rdb.Mode() == rueidis.ClientModeCluster {
		return "", nil
	}
	info, err := v.rdb.Do(ctx, v.rdb.B().Info().Section("server").Build()).ToString()
	if err != nil {
		if _, said := rueidis.IsRedisErr(err); said {
			return "", nil
		}
		return "", err
	}
	_, rest, _ := strings.Cut(info, "run_id:")
	id, _, _ := strings.Cut(rest, "\r")
	return id, nil
}
