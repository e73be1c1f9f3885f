package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

const shipped = "shipped"

// work ships orders until ctx is done. It outlasts a restart of Redis: somebody would have to start a worker again that ended with it.
func (s *shop) work(ctx context.Context, name string, takes, idle time.Duration) error {
	log.Print("works")
	for ctx.Err() == nil {
		j, err := s.receive(ctx, name, idle)
		switch {
		case err != nil && ctx.Err() == nil:
			log.Print("gets no jobs: ", err)
			_ = pause(ctx, time.Second) // the loop ends with ctx
			_ = s.makeQueue(ctx)        // Redis may have lost it; if Redis is still away, the next receive fails as well
			continue
		case j == nil:
			continue
		}
		if err := s.run(ctx, j, takes); err != nil {
			log.Printf("order %s stays in the queue: %v", j.order, err) // and is taken over once idle
		}
	}
	return nil
}

// run continues with the handler's lock: nobody was in between. On ErrTicket, another worker used the ticket and died, or the job was
// queued for too long. Then run locks the order as usual, and the order may have changed.
func (s *shop) run(ctx context.Context, j *job, takes time.Duration) (err error) {
	how := "taken along"
	section, unlock, err := s.locks.Adopt(ctx, j.ticket)
	if errors.Is(err, rlock.ErrTicket) {
		how = "locked anew"
		section, unlock, err = s.lock(j.order).Lock(ctx)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	state, err := s.state(section, j.order)
	if err != nil {
		return err
	}
	if state != shipped { // otherwise its worker died before it could acknowledge the job
		log.Printf("ships %s, %s", j.order, how)
		if err := ship(section, takes); err != nil {
			return err
		}
		if err := s.setState(section, j.order, shipped); err != nil {
			return err
		}
		log.Printf("shipped %s", j.order)
	}
	return s.done(section, j)
}

// ship is the job's work. ctx ends if the lock is lost.
func ship(ctx context.Context, takes time.Duration) error { return pause(ctx, takes) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
