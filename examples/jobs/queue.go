package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// The queue is a Redis stream with one group of workers. A job stays there until its worker acknowledges it, so it survives crashes.
const (
	stream = "jobs"
	group  = "workers"
)

type job struct {
	id            string // in the stream
	order, ticket string
}

func (s *shop) makeQueue(ctx context.Context) error {
	err := s.rdb.Do(ctx, s.rdb.B().XgroupCreate().Key(stream).Group(group).Id("0").Mkstream().Build()).Error()
	if err != nil && strings.HasPrefix(err.Error(), "BUSYGROUP") { // another process was faster
		return nil
	}
	return err
}

func (s *shop) send(ctx context.Context, j job) error {
	b := s.rdb.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("order", j.order).FieldValue("ticket", j.ticket)
	return s.rdb.Do(ctx, b.Build()).Error()
}

// receive returns a job that a dead worker left idle, or else the next job; nil if there is none within 100 ms.
func (s *shop) receive(ctx context.Context, worker string, idle time.Duration) (*job, error) {
	b := s.rdb.B()
	claimed, err := s.rdb.Do(ctx, b.Xautoclaim().Key(stream).Group(group).Consumer(worker).
		MinIdleTime(strconv.FormatInt(idle.Milliseconds(), 10)).Start("0").Count(1).Build()).ToArray()
	if err != nil {
		return nil, err
	}
	if len(claimed) < 2 {
		return nil, errors.New("unknown reply to XAUTOCLAIM")
	}
	entries, err := claimed[1].AsXRange()
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		read, err := s.rdb.Do(ctx, s.rdb.B().Xreadgroup().Group(group, worker).Count(1).Block(100).
			Streams().Key(stream).Id(">").Build()).AsXRead()
		if err != nil && !rueidis.IsRedisNil(err) {
			return nil, err
		}
		entries = read[stream]
	}
	if len(entries) == 0 {
		return nil, nil
	}
	e := entries[0]
	return &job{id: e.ID, order: e.FieldValues["order"], ticket: e.FieldValues["ticket"]}, nil
}

func (s *shop) done(ctx context.Context, j *job) error {
	return s.rdb.Do(ctx, s.rdb.B().Xack().Key(stream).Group(group).Id(j.id).Build()).Error()
}
