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

// isID matches the ids of orders. An id ends up in names of locks and in log lines, so a request may not put in it what it likes: a line
// break would forge a line of the log, and a long one takes memory in Redis.
var isID = regexp.MustCompile(`^[\w:-]{1,64}$`).MatchString

// answer makes a handler of a method of the service.
func answer(method func(ctx context.Context, id string) (order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if !isID(id) {
			http.Error(w, "no such order", http.StatusNotFound)
			return
		}
		o, err := method(rlock.WaitOnly(r.Context()), id) // a client that has gone cuts off no payment
		if err != nil {
			fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o) // fails if the client has gone
	}
}

// fail says what an error means for whoever sent the request. The text of the error is for the log: it names processes.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	log.Printf("%s %s: %v", r.Method, r.URL.EscapedPath(), err)
	switch {
	case r.Context().Err() != nil:
		// The client has gone. Nobody reads an answer.
	case errors.Is(err, rlock.ErrLost):
		// Another process may have been at the order, too: look at it before you send this again.
		http.Error(w, "the lock was lost on the way", http.StatusInternalServerError)
	case errors.Is(err, rlock.ErrUnreachable), errors.Is(err, rlock.ErrClosed):
		// Before ErrNotAcquired: a wait that ended while Redis was silent is both. If it was the unlock that had no answer, the
		// work is done, and whoever sends it again finds that.
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	case errors.Is(err, rlock.ErrNotAcquired):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another request is at this order", http.StatusConflict)
	default:
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}
