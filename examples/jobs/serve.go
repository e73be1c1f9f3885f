package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// isID matches order ids. Ids end up in lock names and log lines: a line break would forge a log line, and a long id costs memory in Redis.
var isID = regexp.MustCompile(`^[\w:-]{1,64}$`).MatchString

// serve accepts orders until ctx is done.
func (s *shop) serve(ctx context.Context, addr string, lasts time.Duration) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{order}", func(w http.ResponseWriter, r *http.Request) {
		order := r.PathValue("order")
		if !isID(order) {
			http.Error(w, "no such order", http.StatusNotFound)
			return
		}
		status, text := s.accept(r.Context(), order, lasts)
		log.Printf("order %s: %s", order, text)
		http.Error(w, text, status)
	})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log.Print("listens at ", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }() // ends with Shutdown
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(last)
}

// accept checks an order under its lock, and sends it to the workers, still locked.
func (s *shop) accept(ctx context.Context, order string, lasts time.Duration) (status int, text string) {
	ctx, unlock, err := s.lock(order).TryLock(ctx, time.Second)
	if rlock.IsBusy(err) {
		return http.StatusConflict, "somebody works on it"
	}
	if err != nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	defer func() { _ = unlock() }() // after a successful Export, unlock does nothing

	state, err := s.state(ctx, order)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, err.Error()
	case state == shipped:
		return http.StatusOK, "it was shipped before"
	}
	// The section and its ctx end here. Code after Export must not need the lock.
	after := context.WithoutCancel(ctx)
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(lasts))
	if err != nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	if err := s.send(after, job{order: order, ticket: ticket}); err != nil {
		s.takeBack(after, ticket)
		return http.StatusServiceUnavailable, err.Error()
	}
	return http.StatusAccepted, "accepted"
}

// takeBack unlocks an order that could not be sent. If the job is in the queue anyway, its worker locks the order anew.
func (s *shop) takeBack(ctx context.Context, ticket string) {
	if _, unlock, err := s.locks.Adopt(ctx, ticket); err == nil {
		_ = unlock()
	}
}
