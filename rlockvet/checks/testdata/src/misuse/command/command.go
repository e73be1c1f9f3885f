package main

import (
	"context"
	"log"
	"net/http"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", handle)
}

// run has a Client for the process.
func run(ctx context.Context) error {
	client, err := rlock.Open("", rlock.Options{})
	if err != nil {
		return err
	}
	return client.Mutex("a").Do(ctx, work)
}

func handle(w http.ResponseWriter, r *http.Request) {
	client, err := rlock.Open("", rlock.Options{}) // want `client is not closed`
	if err == nil {
		err = client.Mutex("a").Do(r.Context(), work)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func work(ctx context.Context) error { return ctx.Err() }
