package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"net/http"
	"regexp"

	"github.com/go-rlock/rlock/rlock"
)

// api is the outermost layer: HTTP.
type api struct{ *service }

func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/charge", answer(a.charge))
	mux.HandleFunc("POST /orders/{id}/ship", answer(a.ship))
	return mux
}

// isID matches order ids. Ids end up in lock names and log lines: a line break would forge a log line, and a long id costs memory in Redis.
var isID = regexp.MustCompile(`^[\w:-]{1,64}$`).MatchString

// answer makes a handler from a service method.
func answer(method func(ctx context.Context, id string) (order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if !isID(id) {
			http.Error(w, "no such order", http.StatusNotFound)
			return
		}
		o, err := method(rlock.WaitOnly(r.Context()), id) // a client that disconnects interrupts no payment
		if err != nil {
			fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o) // fails if the client has disconnected
	}
}

// fail maps an error to a status. The error's text goes to the log only: it names processes.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	log.Printf("%s %s: %v", r.Method, r.URL.EscapedPath(), err)
	switch {
	case r.Context().Err() != nil:
		// The client has disconnected: nobody reads an answer.
	case errors.Is(err, rlock.ErrLost):
		// Another process may have changed the order, too: check it before you retry.
		http.Error(w, "the lock was lost on the way", http.StatusInternalServerError)
	case errors.Is(err, rlock.ErrUnreachable), errors.Is(err, rlock.ErrClosed):
		// If only the unlock went unanswered, the work is done, and a retry finds that.
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	case errors.Is(err, rlock.ErrNotRun) && rlock.IsBusy(err):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another request is working on this order", http.StatusConflict)
	default:
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}
